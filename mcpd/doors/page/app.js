// The dashboard: what it shows, and what a click or a key does.

import { ago, byId, clean, clock, lasted, make, sparkline, took } from "./dom.js";
import { formFor } from "./form.js";
import { Line, enter, isLetIn, leave } from "./line.js";

const LOG_LINES = 1000, EVENTS = 300, POINTS = 60, MOST_TOOLS = 400;
const STATS_EVERY = 2000, AGAIN_FIRST = 500, AGAIN_MOST = 10000;
const TABS = ["tools", "log", "events", "evidence"];

const servers = new Map(); // name → its status
const figures = new Map(); // name → { stats, points, answered, seconds }
const rows = new Map(); // name → what is on the screen for it
const texts = new Map(); // request id → what to do with notifications about it
let chosen = null, tab = "tools", again = AGAIN_FIRST, logId = 0, toolsShown = "", wanted = "";

const line = new Line({ opened, closed, told });

// ── the line ────────────────────────────────────────────────────────────────────────────────────────

async function begin() {
  const refused = await enter().catch(() => "mcpd does not answer");
  const letIn = await isLetIn();
  if (letIn === false) return showGate(refused);
  if (letIn === null) return closed();
  line.open();
  return undefined;
}

function showGate(refused) {
  byId("main").hidden = byId("logout").hidden = true;
  byId("gate").hidden = false;
  byId("gate-words").textContent = `${refused ? `It did not work: ${refused}. ` : ""}Open it from a shell; the address that this makes is good once, for a minute:`;
  linePill("logged out", "off");
}

async function opened() {
  again = AGAIN_FIRST;
  byId("gate").hidden = true;
  byId("main").hidden = byId("logout").hidden = false;
  linePill("live", "ok");
  servers.clear();
  texts.clear();
  toolsShown = "";
  const { id, answer } = line.ask("mcpd/events");
  texts.set(id, (params) => happened(params.event));
  answer.catch(() => line.close() ?? closed()); // it fell behind, or the line broke: a new snapshot then
  const [version, past] = await Promise.all([line.get("mcpd/version"), line.get("mcpd/history", { limit: 100 })]);
  byId("line").title = `mcpd ${version.version}, pid ${version.pid}, Python ${version.python}`;
  byId("events").replaceChildren(...past.entries.map((entry) => eventItem(entry.at, entry.server, entry.message, entry.state, entry.by)));
  chooseOne();
  showTab(tab);
  await look();
}

let waiting = 0;

function closed() {
  linePill("not connected", "bad");
  logId = 0;
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    const letIn = await isLetIn();
    if (letIn) line.open();
    else if (letIn === false) showGate("");
    else closed();
  }, again);
  again = Math.min(again * 2, AGAIN_MOST);
}

function told(method, params) {
  texts.get(params.request ?? params.progressToken)?.(params, method);
}

function linePill(words, state) {
  const pill = byId("line");
  if (pill.textContent !== words) pill.textContent = words;
  pill.dataset.state = state;
}

function say(words) {
  const place = byId("said");
  place.textContent = clean(words);
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), 6000);
}

// ── what happens ────────────────────────────────────────────────────────────────────────────────────

function happened(event) {
  const name = event.server;
  if (event.kind === "removed") servers.delete(name);
  else if (event.status) servers.set(name, event.status);
  if (event.kind !== "snapshot") {
    const state = event.kind === "status" ? event.status?.status : event.kind;
    addTo(byId("events"), eventItem(event.at, name, event.message || event.status?.reason || "", state, event.by), EVENTS);
    if (name === chosen) {
      if (event.kind === "tools") showTools(true);
      if (event.kind === "status" && !toolsShown) showTools(false);
      if (event.kind === "status" && tab === "evidence") showEvidence();
    }
  }
  if (event.kind === "removed") chooseOne();
  draw();
}

const chooseOne = () => servers.has(chosen) || choose(servers.keys().next().value ?? null, false);

function eventItem(at, server, message, state, by) {
  return make("li", { "data-state": state ?? "" },
    make("time", { dateTime: at ?? "" }, at ? clock(at) : ""), " ",
    server ? make("bdi", { className: "name" }, clean(server)) : null, " ",
    state ? make("b", {}, clean(state)) : null, " ",
    make("bdi", {}, clean(message)), by ? make("span", { className: "dim" }, " by ", make("bdi", {}, clean(by))) : null);
}

function addTo(list, item, most) {
  const scroller = list.closest("[tabindex]");
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
  list.append(item);
  while (list.childElementCount > most) list.firstElementChild.remove();
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}

async function look() {
  clearTimeout(look.timer);
  try {
    if (!document.hidden) takeStats(await line.get("mcpd/stats"));
    look.timer = setTimeout(look, STATS_EVERY);
  } catch {
    // no line now: `opened` begins anew
  }
}

function takeStats(stats) {
  for (const each of stats.servers) {
    const { calls, lost, cancelled } = each.counts;
    const known = figures.get(each.server) ?? { points: new Array(POINTS).fill(null), answered: null, seconds: 0 };
    const answered = calls - lost - cancelled;
    const more = known.answered === null ? 0 : answered - known.answered;
    known.points = [...known.points.slice(1), more > 0 ? ((each.seconds - known.seconds) / more) * 1000 : null];
    figures.set(each.server, { ...known, stats: each, answered, seconds: each.seconds });
  }
  draw();
}

// ── the servers ─────────────────────────────────────────────────────────────────────────────────────

let drawing = 0;

function draw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    drawServers();
    drawHead();
  });
}

const matches = (text) => text.toLowerCase().includes(wanted);
const shown = () => [...servers.values()].filter((server) => !wanted || matches(server.name) || server.name === chosen);

function drawServers() {
  const list = byId("servers");
  const now = shown();
  for (const [name, row] of rows) {
    if (!now.some((server) => server.name === name)) {
      row.item.remove();
      rows.delete(name);
    }
  }
  now.forEach((server, index) => {
    const row = rows.get(server.name) ?? newRow(server.name);
    fillRow(row, server);
    if (list.children[index] !== row.item) list.insertBefore(row.item, list.children[index] ?? null);
  });
  const all = [...servers.values()];
  const up = all.filter((server) => server.status === "connected").length;
  byId("totals").textContent = `${up} of ${all.length} connected`;
  document.title = all.length ? `${up}/${all.length} · mcpd` : "mcpd";
  byId("none").hidden = all.length > 0;
}

function newRow(name) {
  const label = clean(name);
  const state = make("span", { className: "state" });
  const about = make("span", { className: "about dim" });
  const spark = make("span", { className: "latency" });
  const pick = make("button", { type: "button", className: "pick", onclick: () => choose(name) },
    make("bdi", { className: "name" }, label), state, about, spark);
  const toggle = make("button", { type: "button", className: "switch", role: "switch", "aria-label": `${label}: on`, onclick: () => switchOnOff(name) });
  const again = make("button", { type: "button", className: "quiet again", "aria-label": `Reconnect ${label}`, title: "Reconnect (r)", onclick: () => reconnect(name) }, "↻");
  const item = make("li", {}, pick, make("span", { className: "acts" }, again, toggle));
  const row = { item, pick, state, about, spark, toggle, again };
  rows.set(name, row);
  return row;
}

function fillRow(row, server) {
  const isOn = server.status !== "disabled";
  row.item.dataset.state = server.status;
  row.item.classList.toggle("chosen", server.name === chosen);
  row.pick.setAttribute("aria-current", server.name === chosen ? "true" : "false");
  setText(row.state, server.status);
  const trouble = server.status === "failed" || server.status === "needs-auth" ? server.last_error?.message : "";
  const offers = server.status === "connected" || server.tools ? `${server.tools} tool${server.tools === 1 ? "" : "s"}` : "";
  setText(row.about, clean(trouble || offers || server.reason));
  row.toggle.setAttribute("aria-checked", String(isOn));
  row.again.disabled = !isOn;
  const known = figures.get(server.name);
  const p50 = known?.stats.counts.p50_ms;
  const words = p50 === null || p50 === undefined ? "" : `p50 ${took(p50)}`;
  const key = JSON.stringify([words, known?.points]);
  if (known && row.key !== key) {
    row.key = key;
    const measured = known.points.some((value) => value !== null);
    row.spark.replaceChildren(...(words ? [sparkline(known.points, measured ? `Latency of the last two minutes, ${words}` : "No calls in the last two minutes"), make("span", {}, words)] : []));
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

async function wish(method, name, words) {
  say(`${name}: ${words}`);
  try {
    const { server } = await line.get(method, { server: name, wait: 10 });
    say(`${name}: ${server.status}${server.reason ? `, ${server.reason}` : ""}`);
  } catch (error) {
    say(`${name}: ${error.message}`);
  }
}

const reconnect = (name) => wish("mcpd/reconnect", name, "reconnecting");

function switchOnOff(name) {
  const isOn = servers.get(name)?.status !== "disabled";
  return wish(isOn ? "mcpd/disable" : "mcpd/enable", name, isOn ? "switching off" : "switching on");
}

function choose(name, byPerson = true) {
  if (byPerson) document.body.classList.add("looking");
  if (name === chosen) return;
  chosen = name;
  toolsShown = "";
  if (logId) line.cancel(logId);
  logId = 0;
  showTab(tab);
  draw();
  rows.get(name)?.item.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const names = shown().map((server) => server.name);
  const index = names.indexOf(chosen);
  const next = names[Math.min(names.length - 1, Math.max(0, index + by))];
  if (next !== undefined) choose(next, false);
}

// ── the chosen one ──────────────────────────────────────────────────────────────────────────────────

function drawHead() {
  const server = servers.get(chosen);
  const key = JSON.stringify([server, figures.get(chosen)?.stats.counts]);
  const place = byId("head");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!server) return place.replaceChildren();
  const counts = figures.get(chosen)?.stats.counts;
  const facts = [
    server.pid && `pid ${server.pid}`,
    server.transport,
    server.protocol_version && `MCP ${server.protocol_version}`,
    server.restarts && `${server.restarts} restart${server.restarts === 1 ? "" : "s"}`,
    counts?.calls && `${counts.calls} call${counts.calls === 1 ? "" : "s"}, ${counts.errors} failed`,
    counts?.p95_ms && `p50 ${took(counts.p50_ms)}, p95 ${took(counts.p95_ms)}`,
  ].filter(Boolean);
  const since = make("time", { dateTime: server.since, title: server.since }, ` since ${clock(server.since)}`);
  const error = server.last_error && make("p", { className: server.status === "connected" ? "past" : "trouble" },
    make("b", {}, server.status === "connected" ? "Before: " : ""), make("bdi", {}, clean(server.last_error.message)), ` (${ago(server.last_error.at)})`,
    server.retry_at ? `; next try at ${clock(server.retry_at)}` : "");
  return place.replaceChildren(
    make("h2", {}, make("bdi", {}, clean(server.name))),
    make("p", { "data-state": server.status }, make("b", { className: "state" }, server.status), since, server.reason ? " · " : "", make("bdi", {}, clean(server.reason))),
    make("p", { className: "facts dim" }, facts.map(clean).join(" · ")),
    error || "",
    ...server.warnings.map((warning) => make("p", { className: "past" }, clean(warning))));
}

function showTab(name, focus = false) {
  tab = name;
  for (const each of TABS) {
    const button = byId(`tab-${each}`);
    button.setAttribute("aria-selected", String(each === name));
    button.tabIndex = each === name ? 0 : -1;
    byId(`panel-${each}`).hidden = each !== name;
    if (focus && each === name) button.focus();
  }
  if (!chosen) return;
  if (name === "tools") showTools(false);
  else if (name === "log") showLog();
  else if (name === "evidence") showEvidence();
  else byId("events").scrollTop = byId("events").scrollHeight;
}

// ── tools ───────────────────────────────────────────────────────────────────────────────────────────

async function showTools(changed) {
  const place = byId("panel-tools");
  const name = chosen, server = servers.get(name);
  if (tab !== "tools" || !server || (toolsShown === name && !changed)) return;
  toolsShown = name;
  const isThere = server.status === "connected" || server.tools > 0;
  if (!isThere) {
    toolsShown = "";
    const start = server.status === "idle" ? make("button", { type: "button", onclick: () => reconnect(name) }, "Start it") : null;
    return place.replaceChildren(make("p", { className: "dim" }, `No list of tools: the server is ${server.status}. `, start));
  }
  try {
    const { tools, dropped } = await line.get("mcpd/tools", { server: name });
    if (name !== chosen) return;
    const open = new Set([...place.querySelectorAll("details[open][data-tool]")].map((each) => each.dataset.tool));
    const kept = new Map([...place.querySelectorAll("details[data-tool]")].map((each) => [each.dataset.key, each]));
    place.replaceChildren(
      make("p", { className: "dim", id: "no-tools", hidden: true }),
      ...tools.slice(0, MOST_TOOLS).map((tool, index) => {
        const key = JSON.stringify(tool);
        return kept.get(key) ?? toolItem(tool, `tool-${index}`, key, open.has(tool.name));
      }),
      tools.length > MOST_TOOLS ? make("p", { className: "dim" }, `${tools.length - MOST_TOOLS} more: mcpctl list-tools shows them all.`) : "",
      dropped ? make("p", { className: "dim" }, `${dropped} entries were no usable tools.`) : "");
    filterTools();
  } catch (error) {
    toolsShown = "";
    if (name === chosen) place.replaceChildren(make("p", { className: "trouble" }, clean(error.message)));
  }
}

function filterTools() {
  const items = [...byId("panel-tools").querySelectorAll("details[data-tool]")];
  const inName = wanted && chosen && matches(chosen);
  let hidden = 0;
  for (const item of items) {
    item.hidden = Boolean(wanted && !inName && !matches(item.dataset.tool) && !matches(item.dataset.about));
    hidden += item.hidden ? 1 : 0;
  }
  const note = byId("no-tools");
  if (!note) return;
  note.hidden = items.length > hidden;
  note.textContent = items.length ? "No tool matches the filter." : "It offers no tools.";
}

function toolItem(tool, id, key, isOpen) {
  const about = typeof tool.description === "string" ? tool.description : "";
  const item = make("details", { "data-tool": tool.name, "data-about": about, "data-key": key },
    make("summary", {}, make("bdi", { className: "name" }, clean(tool.name)), " ", make("span", { className: "dim brief" }, clean(about.split("\n")[0]).slice(0, 200))));
  let built = false;
  const build = () => {
    if (built) return;
    built = true;
    item.append(toolBody(tool, about, id));
  };
  item.addEventListener("toggle", build);
  if (isOpen) {
    item.open = true;
    build();
  }
  return item;
}

function toolBody(tool, about, id) {
  const hints = Object(tool.annotations);
  const chips = [["readOnlyHint", "says it only reads"], ["destructiveHint", "says it may destroy"], ["openWorldHint", "reaches outside"]]
    .filter(([name]) => hints[name] === true).map(([, words]) => make("span", { className: "chip" }, words));
  const { element, read } = formFor(tool.inputSchema, id);
  const result = make("pre", { className: "result", hidden: true, tabIndex: 0, "aria-label": "Result", "aria-live": "polite" });
  const note = make("span", { className: "dim" });
  const send = make("button", { type: "submit", className: "primary" }, "Call");
  const stop = make("button", { type: "button", hidden: true }, "Cancel");
  const form = make("form", { noValidate: true }, element, make("p", { className: "acts" }, send, stop, note));
  const show = (text, isError) => {
    result.hidden = false;
    result.textContent = clean(text);
    result.classList.toggle("trouble", isError);
    result.scrollIntoView({ block: "nearest" });
  };
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    let text;
    try {
      text = read();
    } catch (error) {
      show(error.message, true);
      return;
    }
    await call(tool, text, { send, stop, note, show });
  });
  const schemas = make("details", { className: "schema" }, make("summary", {}, "Schema"),
    make("pre", { tabIndex: 0 }, clean(JSON.stringify(tool.inputSchema, null, 2))),
    ...(tool.outputSchema ? [make("h4", {}, "Output"), make("pre", { tabIndex: 0 }, clean(JSON.stringify(tool.outputSchema, null, 2)))] : []));
  return make("div", { className: "body" }, make("p", { className: "long" }, clean(about)), make("p", {}, ...chips), schemas, form, result);
}

async function call(tool, text, { send, stop, note, show }) {
  const began = performance.now();
  const token = `page-${began}`;
  const params = `{"server":${JSON.stringify(tool.server)},"tool":${JSON.stringify(tool.name)},"arguments":${text},"_meta":{"progressToken":${JSON.stringify(token)}}}`;
  texts.set(token, (told) => {
    note.textContent = clean(`${told.progress}${told.total ? ` of ${told.total}` : ""} ${told.message ?? ""}`);
  });
  const { id, answer } = line.ask("mcpd/call", null, params);
  send.disabled = true;
  stop.hidden = false;
  stop.onclick = () => line.cancel(id);
  note.textContent = "running";
  try {
    const result = await answer;
    const parts = [result.output, result.error && result.error !== result.output ? result.error : "", ...result.warnings.map((each) => `warning: ${each}`)];
    if (result.data !== null && result.data !== undefined) parts.push(JSON.stringify(result.data, null, 2));
    const others = result.content.filter((each) => each.type !== "text");
    if (others.length) parts.push(JSON.stringify(others, null, 2));
    show(parts.filter(Boolean).join("\n") || "(nothing)", !result.success);
  } catch (error) {
    const problems = (error.data?.problems ?? []).map((each) => `  ${each.path}: ${each.message}`);
    show([error.message, ...problems].join("\n"), true);
  } finally {
    texts.delete(token);
    send.disabled = false;
    stop.hidden = true;
    note.textContent = took(performance.now() - began);
  }
}

// ── log and evidence ────────────────────────────────────────────────────────────────────────────────

async function showLog() {
  const place = byId("log");
  if (logId && place.dataset.server === chosen) return;
  if (logId) line.cancel(logId);
  place.dataset.server = chosen;
  place.replaceChildren();
  const { id, answer } = line.ask("mcpd/logs", { server: chosen, lines: 300, follow: true });
  logId = id;
  const put = (text) => {
    if (id === logId) addTo(place, logLine(text), LOG_LINES);
  };
  texts.set(id, (params) => put(params.line ?? `… ${params.missed} lines came too fast to be shown`));
  try {
    const { lines } = await answer;
    if (id === logId) {
      place.prepend(...lines.map(logLine));
      place.scrollTop = place.scrollHeight;
    }
  } catch (error) {
    if (id === logId) put(error.message);
  }
}

function logLine(text) {
  const found = /^(\d{4}-\d\d-\d\dT[\d:.]+Z) (.*)$/s.exec(text);
  return found
    ? make("div", {}, make("time", { dateTime: found[1], title: found[1] }, clock(found[1])), " ", make("bdi", {}, clean(found[2])))
    : make("div", {}, make("bdi", {}, clean(text)));
}

async function showEvidence() {
  const name = chosen;
  let detail;
  try {
    detail = await line.get("mcpd/server", { server: name });
  } catch (error) {
    return byId("panel-evidence").replaceChildren(make("p", { className: "trouble" }, clean(error.message)));
  }
  if (name !== chosen) return undefined;
  const { server } = detail;
  const failure = server.last_error;
  const facts = [
    ["Runs", detail.command.join(" ")],
    ["Found at", detail.executable],
    ["In", detail.cwd],
    ["URL", detail.url],
    ["Is", [server.server_info?.name, server.server_info?.version].filter(Boolean).join(" ")],
    ["Can", server.capabilities.join(", ")],
    ["Last answer", server.last_ok && ago(server.last_ok)],
    ["Failed attempts in a row", server.attempts || ""],
    ["No messages on stdout", detail.junk_lines ? `${detail.junk_lines} lines, such as ${detail.junk_sample}` : ""],
    ["Log file", detail.log_file],
  ].filter(([, value]) => value);
  return byId("panel-evidence").replaceChildren(
    make("dl", {}, ...facts.map(([what, value]) => make("div", {}, make("dt", {}, what), make("dd", {}, make("bdi", {}, clean(value)))))),
    ...(failure ? [make("h3", {}, "Last failure"), make("p", { className: "trouble" }, clean(`${failure.kind}: ${failure.message}`)),
      failure.stderr.length ? make("pre", { tabIndex: 0 }, failure.stderr.map(clean).join("\n")) : ""] : []),
    ...(detail.negotiation.length ? [make("h3", {}, "How it was reached"),
      make("ol", { className: "steps" }, ...detail.negotiation.map((step) => make("li", {}, make("b", {}, clean(step.step)), " ", make("bdi", {}, clean(step.outcome)), make("span", { className: "dim" }, ` ${took(step.ms)}`))))] : []),
    ...(detail.history.length ? [make("h3", {}, "Lately"),
      make("ol", { className: "steps" }, ...detail.history.map((entry) => eventItem(entry.at, null, entry.message, entry.state, entry.by)))] : []),
    make("h3", {}, "Definition"), make("pre", { tabIndex: 0 }, clean(JSON.stringify(detail.definition, null, 2))));
}

// ── keys and clicks ─────────────────────────────────────────────────────────────────────────────────

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => byId("filter").focus(),
  r: () => chosen && servers.get(chosen)?.status !== "disabled" && reconnect(chosen),
  t: () => chosen && switchOnOff(chosen),
  "?": () => byId("help").showModal(),
  ...Object.fromEntries(TABS.map((name, index) => [String(index + 1), () => showTab(name)])),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open || byId("main").hidden) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by) showTab(TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length], true);
});
for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => showTab(name));

byId("filter").addEventListener("input", (event) => {
  wanted = event.target.value.trim().toLowerCase();
  filterTools();
  draw();
});
byId("keys").addEventListener("click", () => byId("help").showModal());
byId("back").addEventListener("click", () => document.body.classList.remove("looking"));
byId("logout").addEventListener("click", async () => {
  line.close();
  await leave();
  showGate("");
});
document.addEventListener("visibilitychange", () => !document.hidden && look());

begin();
