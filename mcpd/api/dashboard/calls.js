// The page of calls: which client called what, how long it took and how it ended. Newest first, live.

import { byId, clean, complaint, make, withCode } from "./dom.js";
import { line, matches, now, streams } from "./state.js";
import { moment, size, took } from "./units.js";

const MOST = 500, PAST = 200;
const LABELS = ["Time", "Client", "Server", "Call", "Outcome", "Duration", "Size", "Message"];
const STATES = { ok: "ok", "tool-error": "bad", error: "bad", failed: "bad", denied: "denied", "input-required": "pending" };
let stream = 0, rows = null;

/** End the stream. */
export function leaveCalls() {
  if (stream) line.cancel(stream);
  streams.delete(stream);
  stream = 0;
}

export async function showCalls() {
  leaveCalls();
  if (now.page !== "calls") return;
  const failed = byId("only-failed").getAttribute("aria-pressed") === "true";
  const { id, answer } = line.ask("mcpd/calls", { limit: PAST, failed, follow: true });
  stream = id;
  streams.set(id, ({ call }) => id === stream && call && add(call));
  try {
    const { calls, dropped } = await answer;
    if (id === stream) fill(calls, dropped);
  } catch (error) {
    if (id === stream) byId("calls").replaceChildren(complaint(error.message));
  }
}

/** Show only the calls that contain the filter's text. */
export function filterCalls() {
  for (const row of rows?.children ?? []) row.hidden = !matches(row.dataset.text);
}

function fill(calls, dropped) {
  rows = make("tbody", {}, ...calls.map(entry).reverse());
  byId("calls").replaceChildren(
    make("table", {}, make("thead", {}, make("tr", {}, ...LABELS.map((label) => make("th", { scope: "col" }, label)))), rows),
    dropped ? make("p", { className: "dim" }, `${dropped} calls could not be written to the log.`) : "");
  filterCalls();
}

function add(call) {
  if (!rows) return;
  rows.prepend(entry(call));
  while (rows.childElementCount > MOST) rows.lastElementChild.remove();
  filterCalls();
}

function entry(call) {
  const { at, outcome, client, pid, server, method, name, message } = call;
  const what = method === "tools/call" || !method ? name : `${method} ${name}`.trim();
  const who = client && pid ? `${client} (${pid})` : client;
  const cell = (label, ...content) => make("td", { "data-label": label }, ...content);
  const ended = call.cached ? `${outcome} (cached)` : outcome;
  const words = outcome === "omitted" ? `${call.count} more calls in one second` : message;
  return make("tr", { "data-state": STATES[outcome] ?? "off", "data-text": [who, server, what, ended, words].join(" ") },
    cell("Time", moment(at)),
    cell("Client", make("bdi", {}, clean(who) || "–")),
    cell("Server", make("bdi", {}, clean(server) || "–")),
    cell("Call", make("bdi", { className: "name" }, clean(what) || "–")),
    cell("Outcome", make("b", { className: "state" }, clean(ended))),
    cell("Duration", method ? took(call.duration_ms) : "–"),
    cell("Size", method ? size(call.response_bytes) : "–"),
    cell("Message", make("bdi", {}, ...withCode(words))));
}

byId("only-failed").addEventListener("click", () => {
  const isPressed = byId("only-failed").getAttribute("aria-pressed") === "true";
  byId("only-failed").setAttribute("aria-pressed", String(!isPressed));
  showCalls();
});
