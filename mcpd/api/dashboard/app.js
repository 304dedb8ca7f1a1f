// The dashboard: it comes in, opens the line, and hears what happens.

import { reconnect, say, toggle } from "./acts.js";
import { draw, follow, leaveDetail, lookAgain, move } from "./choice.js";
import { byId, clean, make, setText } from "./dom.js";
import { addEvent, showPast } from "./events.js";
import { showEvidence } from "./evidence.js";
import { listen } from "./keys.js";
import { Refused } from "./line.js";
import { forgetLog } from "./log.js";
import { route } from "./route.js";
import { line, now, servers, streams } from "./state.js";
import { follow as followStats } from "./stats.js";
import { TABS, turnTo } from "./tabs.js";
import { filterTools, forgetTools, showTools, showToolsIfNone } from "./tools.js";
import { clock, distance, tick } from "./units.js";
import { enter, isLetIn, leave } from "./visit.js";

const AGAIN_FIRST = 500, AGAIN_MOST = 10_000, PAST = 100, MOST_PROBLEMS = 3;
const OF_MAIN = ["main", "logout", "filter", "totals", "keys"];

let again = AGAIN_FIRST, waiting = 0, lastHeard = null, wasIn = false;

// ── the line ────────────────────────────────────────────────────────────────────────────────────────

async function begin() {
  clearTimeout(waiting);
  const refused = await enter().catch(() => "mcpd does not answer");
  const letIn = await isLetIn();
  if (letIn) line.open();
  else if (letIn === false) showGate(refused && `It did not work: ${refused}.`);
  else closed();
}

function showGate(why) {
  for (const id of [...OF_MAIN, "gone", "config"]) byId(id).hidden = true;
  document.title = "mcpd";
  byId("gate").hidden = false;
  byId("gate-why").hidden = !why;
  setText(byId("gate-why"), why);
  linePill("logged out", "off");
}

async function opened() {
  again = AGAIN_FIRST;
  wasIn = true;
  for (const id of ["gate", "gone"]) byId(id).hidden = true;
  for (const id of OF_MAIN) byId(id).hidden = false;
  linePill("live", "ok");
  streams.clear();
  const { id, answer } = line.ask("mcpd/events");
  streams.set(id, (params) => happened(params.event));
  answer.catch((error) => error instanceof Refused && fellBehind());
  try {
    const [status, past] = await Promise.all([line.get("mcpd/status"), line.get("mcpd/history", { limit: PAST })]);
    showAll(status, past);
  } catch {
    return; // it broke again: `closed` was called
  }
  await followStats(draw);
}

function showAll({ servers: all, daemon, config }, past) {
  servers.clear();
  for (const server of all) servers.set(server.name, server);
  byId("line").title = `mcpd ${daemon.version}, pid ${daemon.pid}`;
  showConfig(config);
  showPast(past.entries);
  lookAgain();
  draw();
}

/** The daemon tells this page no more: too much happened at once. */
function fellBehind() {
  line.close();
  closed();
}

function closed() {
  forgetLog();
  clearTimeout(waiting);
  linePill("not connected", "bad");
  byId("gone").hidden = false;
  byId("gone-words").replaceChildren(
    `mcpd does not answer${lastHeard ? `; what you see is from ${clock(lastHeard)}` : ""}. Next try `,
    Object.assign(distance(new Date(Date.now() + again).toISOString(), "in"), { ariaHidden: "true" }), "; ", make("code", {}, "mcpctl status"), " starts it.");
  waiting = setTimeout(comeBack, again);
  again = Math.min(again * 2, AGAIN_MOST);
}

async function comeBack() {
  clearTimeout(waiting);
  const letIn = await isLetIn();
  if (letIn) line.open();
  else if (letIn === false) showGate(wasIn && "Your visit is over: mcpd was started anew, or you logged out elsewhere.");
  else closed();
}

function told(_, params) {
  lastHeard = Date.now();
  streams.get(params.request ?? params.progressToken)?.(params);
}

function linePill(words, state) {
  setText(byId("line"), words);
  byId("line").dataset.state = state;
}

// ── what happens ────────────────────────────────────────────────────────────────────────────────────

function happened(event) {
  const name = event.server;
  if (event.kind === "removed") {
    servers.delete(name);
    forgetTools(name);
  }
  else if (event.status) servers.set(name, event.status);
  if (event.kind !== "snapshot") {
    addEvent(event);
    if (event.kind === "config") line.get("mcpd/status").then((status) => showConfig(status.config), () => {});
    if (name === now.chosen) showChange(event.kind);
    else if (!now.chosen) follow();
  }
  draw();
}

/** Something about the chosen server. */
function showChange(kind) {
  if (kind === "removed") {
    say(`${now.chosen} was removed from the configuration`);
    follow();
  }
  if (kind === "tools") showTools({ changed: true });
  if (kind === "status") showToolsIfNone();
  if (kind === "status" && now.tab === "evidence") showEvidence();
}

/** A file that could not be used is nowhere else to be seen: the servers are those of the one before. */
function showConfig({ path, problems }) {
  setText(byId("path"), clean(path));
  byId("config").hidden = !problems.length;
  const words = problems.map(({ message, path: at, fix }) => `${message} @ ${at}${fix ? ` (${fix})` : ""}`);
  setText(byId("config"), words.length ? clean(`${path} cannot be used, so what was in force stays: ${words.slice(0, MOST_PROBLEMS).join("; ")}`) : "");
}

// ── keys and clicks ─────────────────────────────────────────────────────────────────────────────────

listen({
  j: () => move(1),
  k: () => move(-1),
  "/": () => byId("filter").focus(),
  r: () => reconnect(now.chosen),
  t: () => toggle(now.chosen),
  ...Object.fromEntries(TABS.map((name, index) => [String(index + 1), () => turnTo(name)])),
});
byId("servers").addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  move(by);
});
byId("filter").addEventListener("input", (event) => {
  now.wanted = event.target.value.trim().toLowerCase();
  filterTools();
  draw();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("detail").focus();
});
byId("back").addEventListener("click", leaveDetail);
byId("try").addEventListener("click", comeBack);
byId("logout").addEventListener("click", async () => {
  line.close();
  await leave();
  location.reload(); // nothing of what was shown stays
});
document.addEventListener("visibilitychange", () => !document.hidden && followStats(draw));
// An address with a new code, opened where the page is already, is no new page for the browser.
addEventListener("hashchange", () => (route() ? servers.size && follow() : begin()));
setInterval(tick, 1000);

Object.assign(line, { opened, closed, told });
begin();
