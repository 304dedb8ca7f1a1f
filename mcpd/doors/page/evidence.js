// What explains a server's state: its log as it comes, what happened, and the evidence.

import { ago, byId, clean, clock, make, took } from "./dom.js";
import { line, now, streams } from "./state.js";

const LOG_LINES = 1000;
export const EVENTS = 300;
let logId = 0;

/** Follow no log any more. */
export function forgetLog() {
  if (logId) line.cancel(logId);
  logId = 0;
}

export async function showLog() {
  const place = byId("log");
  if (logId && place.dataset.server === now.chosen) return;
  forgetLog();
  place.dataset.server = now.chosen;
  place.replaceChildren();
  const { id, answer } = line.ask("mcpd/logs", { server: now.chosen, lines: 300, follow: true });
  logId = id;
  const put = (text) => {
    if (id === logId) addTo(place, logLine(text), LOG_LINES);
  };
  streams.set(id, (params) => put(params.line ?? `… ${params.missed} lines came too fast to be shown`));
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

export async function showEvidence() {
  const name = now.chosen;
  let detail;
  try {
    detail = await line.get("mcpd/server", { server: name });
  } catch (error) {
    return byId("panel-evidence").replaceChildren(make("p", { className: "trouble" }, clean(error.message)));
  }
  if (name !== now.chosen) return undefined;
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

export function eventItem(at, server, message, state, by) {
  return make("li", { "data-state": state ?? "" },
    make("time", { dateTime: at ?? "" }, at ? clock(at) : ""), " ",
    server ? make("bdi", { className: "name" }, clean(server)) : null, " ",
    state ? make("b", {}, clean(state)) : null, " ",
    make("bdi", {}, clean(message)), by ? make("span", { className: "dim" }, " by ", make("bdi", {}, clean(by))) : null);
}

export function addTo(list, item, most) {
  const scroller = list.closest("[tabindex]");
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
  list.append(item);
  while (list.childElementCount > most) list.firstElementChild.remove();
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}
