// The dashboard: log in, connect to the daemon, show its state and follow its events.

import { reconnect, say, toggle } from "./actions.js";
import { draw, follow, leaveDetail, refresh, move } from "./selection.js";
import { byId, clean, make, plain, setText } from "./dom.js";
import { showApprovals } from "./approvals.js";
import { addEvent, showPast } from "./events.js";
import { filterCalls, leaveCalls, showCalls } from "./calls.js";
import { showClients } from "./clients.js";
import { showEvidence } from "./evidence.js";
import { listen } from "./keys.js";
import { Refused } from "./daemon_connection.js";
import { forgetLog } from "./log.js";
import { leaveMessages } from "./messages.js";
import { PAGES, turnToPage } from "./pages.js";
import { showPrompts, showResources } from "./resources.js";
import { route } from "./route.js";
import { line, now, servers, streams } from "./state.js";
import { follow as followStats } from "./stats.js";
import { TABS, showTab, turnTo } from "./tabs.js";
import { filterTools, forgetTools, showTools, showToolsIfNone } from "./tools.js";
import { clock, distance, tick } from "./units.js";
import { isLoggedIn, login, logout } from "./login.js";

const AGAIN_FIRST = 500, AGAIN_MOST = 10_000, PAST = 100, MOST_PROBLEMS = 3;
const OF_MAIN = ["main", "logout", "filter", "totals", "keys", "pages"];

let again = AGAIN_FIRST, waiting = 0, lastHeard = null, wasIn = false;

// ── the connection ────────────────────────────────────────────────────────────────────────────────────────

async function begin() {
  clearTimeout(waiting);
  const refused = await login().catch(() => "mcpd is not responding");
  const loggedIn = await isLoggedIn();
  if (loggedIn) line.open();
  else if (loggedIn === false) showGate(refused && `Login failed: ${refused}.`);
  else closed();
}

function showGate(why) {
  for (const id of [...OF_MAIN, "gone", "config", "approvals", "attention"]) byId(id).hidden = true;
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
    return; // disconnected again; `closed` was called
  }
  showClients();
  showCalls();
  showApprovals();
  await followStats(draw);
}

function showAll({ servers: all, daemon, config }, past) {
  servers.clear();
  for (const server of all) servers.set(server.name, server);
  byId("line").title = `mcpd ${daemon.version}, pid ${daemon.pid}`;
  showConfig(config);
  showPast(past.entries);
  refresh();
  draw();
}

/** The daemon ended the event stream because this page read it too slowly: reconnect. */
function fellBehind() {
  line.close();
  closed();
}

function closed() {
  forgetLog();
  leaveMessages();
  leaveCalls();
  clearTimeout(waiting);
  linePill("not connected", "bad");
  byId("gone").hidden = false;
  byId("gone-words").replaceChildren(
    `mcpd is not responding${lastHeard ? `; last update at ${clock(lastHeard)}` : ""}. Retrying `,
    Object.assign(distance(new Date(Date.now() + again).toISOString(), "in"), { ariaHidden: "true" }), ". Run ", make("code", {}, "mcpctl status"), " to start it.");
  waiting = setTimeout(comeBack, again);
  again = Math.min(again * 2, AGAIN_MOST);
}

async function comeBack() {
  clearTimeout(waiting);
  const loggedIn = await isLoggedIn();
  if (loggedIn) line.open();
  else if (loggedIn === false) showGate(wasIn && "You were logged out: mcpd was restarted, or you logged out in another tab.");
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

// ── events ────────────────────────────────────────────────────────────────────────────────────

function happened(event) {
  const name = event.server;
  if (event.kind === "approval") {
    showApprovals();
    return;
  }
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

/** Update the panel of the chosen server. */
function showChange(kind) {
  if (kind === "removed") {
    say(`${now.chosen} was removed from the configuration.`);
    follow();
  }
  if (kind === "tools") showTools({ changed: true });
  if (kind === "status") showToolsIfNone();
  if (kind === "resources" || kind === "status") showResources();
  if (kind === "prompts" || kind === "status") showPrompts();
  if (kind === "status" && now.tab === "evidence") showEvidence();
}

/** Show the errors of a rejected configuration; the servers shown are those of the previous one. */
function showConfig({ path, problems }) {
  setText(byId("path"), clean(path));
  byId("config").hidden = !problems.length;
  const words = problems.map(({ message, path: at, fix }) => `${message} @ ${at}${fix ? ` (${fix})` : ""}`);
  setText(byId("config"), words.length ? plain(`${path} has errors; the previous configuration stays active: ${words.slice(0, MOST_PROBLEMS).join("; ")}`) : "");
}

// ── keys and clicks ─────────────────────────────────────────────────────────────────────────────────

function turn(name) {
  turnToPage(name);
  if (name !== "servers") leaveMessages();
  else if (now.chosen) showTab(now.tab);
  draw();
}

/** Shortcuts for the chosen server do nothing while it is not on the screen. */
const ifShown = (act) => () => now.page === "servers" && act();

listen({
  j: ifShown(() => move(1)),
  k: ifShown(() => move(-1)),
  "/": ifShown(() => byId("filter").focus()),
  r: ifShown(() => reconnect(now.chosen)),
  t: ifShown(() => toggle(now.chosen)),
  s: () => turn("servers"),
  c: () => turn("clients"),
  l: () => turn("calls"),
  e: () => turn("events"),
  ...Object.fromEntries(TABS.map((name, index) => [String(index + 1), ifShown(() => turnTo(name))])),
});
byId("servers").addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  move(by);
});
if (matchMedia("(pointer: coarse)").matches) byId("filter").placeholder = "Filter";
byId("filter").addEventListener("input", (event) => {
  now.wanted = event.target.value.trim().toLowerCase();
  filterTools();
  filterCalls();
  draw();
});
byId("attention").addEventListener("click", () => {
  now.onlyTrouble = !now.onlyTrouble;
  turn("servers");
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("detail").focus();
});
byId("back").addEventListener("click", leaveDetail);
byId("try").addEventListener("click", comeBack);
byId("logout").addEventListener("click", async () => {
  line.close();
  await logout();
  location.reload(); // discards everything that was shown
});
document.addEventListener("visibilitychange", () => !document.hidden && followStats(draw));
for (const name of PAGES) byId(`page-${name}`).addEventListener("click", () => turn(name));
// Opening an address with a new code in this tab only changes the hash.
addEventListener("hashchange", () => (route() ? servers.size && follow() : begin()));
setInterval(tick, 1000);

Object.assign(line, { opened, closed, told });
begin();
