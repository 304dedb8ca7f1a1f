// The dashboard: what it shows, and what a click or a key does.

import { EVENTS, addTo, eventItem, forgetLog, showEvidence, showLog } from "./evidence.js";
import { ago, byId, clean, clock, make, sparkline, took } from "./dom.js";
import { enter, isLetIn, leave } from "./line.js";
import { line, matches, now, servers, streams } from "./state.js";
import { filterTools, showTools } from "./tools.js";

const POINTS = 60, STATS_EVERY = 2000, AGAIN_FIRST = 500, AGAIN_MOST = 10000;
const TABS = ["tools", "log", "events", "evidence"];

const figures = new Map(); // name → { stats, points, answered, seconds }
const rows = new Map(); // name → what is on the screen for it
let again = AGAIN_FIRST, waiting = 0, drawing = 0;

// ── the line ────────────────────────────────────────────────────────────────────────────────────────

async function begin() {
  const refused = await enter().catch(() => "mcpd does not answer");
  const letIn = await isLetIn();
  if (letIn === false) return showGate(refused);
  if (letIn === null) return closed();
  clearTimeout(waiting);
  line.open();
  return undefined;
}

function showGate(refused) {
  for (const id of ["main", "logout", "filter", "totals"]) byId(id).hidden = true;
  document.title = "mcpd";
  byId("gate").hidden = false;
  byId("gate-words").textContent = `${refused ? `It did not work: ${refused}. ` : ""}Open it from a shell; the address that this makes is good once, for a minute:`;
  linePill("logged out", "off");
}

async function opened() {
  again = AGAIN_FIRST;
  byId("gate").hidden = true;
  for (const id of ["main", "logout", "filter", "totals"]) byId(id).hidden = false;
  linePill("live", "ok");
  servers.clear();
  streams.clear();
  now.toolsOf = "";
  const { id, answer } = line.ask("mcpd/events");
  streams.set(id, (params) => happened(params.event));
  answer.catch(() => line.close() ?? closed()); // it fell behind, or the line broke: a new snapshot then
  const [version, past] = await Promise.all([line.get("mcpd/version"), line.get("mcpd/history", { limit: 100 })]);
  byId("line").title = `mcpd ${version.version}, pid ${version.pid}, Python ${version.python}`;
  byId("events").replaceChildren(...past.entries.map((entry) => eventItem(entry.at, entry.server, entry.message, entry.state, entry.by)));
  chooseOne();
  showTab(now.tab);
  await look();
}

function closed() {
  linePill("not connected", "bad");
  forgetLog();
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
  streams.get(params.request ?? params.progressToken)?.(params);
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
    if (name === now.chosen) {
      if (event.kind === "tools") showTools(true);
      if (event.kind === "status" && !now.toolsOf) showTools(false);
      if (event.kind === "status" && now.tab === "evidence") showEvidence();
    }
  }
  if (event.kind === "removed") chooseOne();
  draw();
}

const chooseOne = () => servers.has(now.chosen) || choose(servers.keys().next().value ?? null, false);

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

function draw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    drawServers();
    drawHead();
  });
}

const shown = () => [...servers.values()].filter((server) => !now.wanted || matches(server.name) || server.name === now.chosen);

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
  row.item.classList.toggle("chosen", server.name === now.chosen);
  row.pick.setAttribute("aria-current", server.name === now.chosen ? "true" : "false");
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
  if (name === now.chosen) return;
  now.chosen = name;
  now.toolsOf = "";
  forgetLog();
  showTab(now.tab);
  draw();
  rows.get(name)?.item.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const names = shown().map((server) => server.name);
  const index = names.indexOf(now.chosen);
  const next = names[Math.min(names.length - 1, Math.max(0, index + by))];
  if (next !== undefined) choose(next, false);
}

// ── the now.chosen one ──────────────────────────────────────────────────────────────────────────────────

function drawHead() {
  const server = servers.get(now.chosen);
  const key = JSON.stringify([server, figures.get(now.chosen)?.stats.counts]);
  const place = byId("head");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!server) return place.replaceChildren();
  const counts = figures.get(now.chosen)?.stats.counts;
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
  now.tab = name;
  for (const each of TABS) {
    const button = byId(`tab-${each}`);
    button.setAttribute("aria-selected", String(each === name));
    button.tabIndex = each === name ? 0 : -1;
    byId(`panel-${each}`).hidden = each !== name;
    if (focus && each === name) button.focus();
  }
  if (!now.chosen) return;
  if (name === "tools") showTools(false);
  else if (name === "log") showLog();
  else if (name === "evidence") showEvidence();
  else byId("events").scrollTop = byId("events").scrollHeight;
}

// ── keys and clicks ─────────────────────────────────────────────────────────────────────────────────

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => byId("filter").focus(),
  r: () => now.chosen && servers.get(now.chosen)?.status !== "disabled" && reconnect(now.chosen),
  t: () => now.chosen && switchOnOff(now.chosen),
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
  if (by) showTab(TABS[(TABS.indexOf(now.tab) + by + TABS.length) % TABS.length], true);
});
for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => showTab(name));

byId("filter").addEventListener("input", (event) => {
  now.wanted = event.target.value.trim().toLowerCase();
  filterTools();
  draw();
});
byId("keys").addEventListener("click", () => byId("help").showModal());
byId("back").addEventListener("click", () => document.body.classList.remove("looking"));
byId("logout").addEventListener("click", async () => {
  line.close();
  await leave();
  location.reload(); // nothing of what was shown stays
});
document.addEventListener("visibilitychange", () => !document.hidden && look());

Object.assign(line, { opened, closed, told });
// An address with a new code, opened where the page is already: for the browser that is no new page.
addEventListener("hashchange", () => location.hash && begin());
begin();
