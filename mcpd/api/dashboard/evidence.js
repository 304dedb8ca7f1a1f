// The Evidence tab: what explains the chosen server's state.

import { block, byId, clean, complaint, make, withCode } from "./dom.js";
import { eventItem } from "./events.js";
import { line, needsAttention, now } from "./state.js";
import { distance, moment, took } from "./units.js";

export async function showEvidence() {
  const name = now.chosen, place = byId("panel-evidence");
  try {
    const detail = await line.get("mcpd/server", { server: name });
    if (name === now.chosen) place.replaceChildren(...parts(detail));
  } catch (error) {
    if (name === now.chosen) place.replaceChildren(complaint(error.message));
  }
}

function parts(detail) {
  const { last_error: failure, status, name } = detail.server;
  const isBroken = needsAttention(detail.server);
  return [
    ...section("Why", isBroken && [make("dl", {}, ...rows(cause(detail))),
      dependsOnEnvironment(detail.server) && make("p", {}, "To compare the environment of the server with that of your shell, run ",
        make("code", {}, `mcpctl why ${clean(name)}`), ".")]),
    ...section("Details", [make("dl", {}, ...rows(facts(detail)))]),
    ...section("Last failure", failure && status === "connected" && [ // otherwise it is shown above
      make("p", { className: "past" }, make("bdi", {}, ...withCode(failure.message)), " (", clean(failure.kind), ", ", distance(failure.at, "ago"), ")"),
      failure.stderr.length > 0 && block(failure.stderr.join("\n"), { "aria-label": "stderr output" })]),
    ...section("Connection steps", detail.negotiation.length > 0 && [make("ol", { className: "steps" }, ...detail.negotiation.map((step) =>
      make("li", {}, make("b", {}, clean(step.step)), " ", make("bdi", {}, clean(step.outcome)), make("span", { className: "dim" }, ` ${took(step.ms)}`))))]),
    ...section("Recent events", detail.history.length > 0 && [make("ol", { className: "steps" },
      ...detail.history.map((entry) => eventItem({ ...entry, server: null })))]),
    ...section("Definition", [block(JSON.stringify(detail.definition, null, 2), { "aria-label": "Definition" })]),
  ];
}

const rows = (all) => all.filter(([, value]) => value).map(([what, value]) =>
  make("div", {}, make("dt", {}, what), make("dd", {}, value instanceof Node ? value : make("bdi", {}, ...withCode(value)))));

const dependsOnEnvironment = ({ transport, last_error: failure }) =>
  transport === "stdio" && ["spawn", "exited", "closed"].includes(failure?.kind);

/** The suggested command, and the remark after it. */
function step(text) {
  const [, command, remark] = text.match(/^(.*?)(?: {3}(\(.*))?$/s);
  return make("span", {}, make("code", {}, clean(command)), ...(remark ? [" ", ...withCode(remark)] : []));
}

/** What `mcpctl why` shows first: the cause, its evidence, and since when. */
function cause({ server, history, executable, command, path, next }) {
  const failure = server.last_error;
  const firstBad = history.slice(history.findLastIndex(({ state }) => state === "connected" || state === "disabled") + 1).find(({ state }) => state);
  const ended = failure && [
    failure.kind, failure.signal, failure.exit_code !== null && `exit code ${failure.exit_code}`,
    failure.http_status !== null && `HTTP status ${failure.http_status}`, failure.crash_loop && "crash loop",
  ].filter(Boolean).join(", ");
  return [
    ["Cause", failure?.message || server.reason],
    ["Evidence", ended],
    ["Output", failure?.noise],
    ["stderr", failure?.stderr.length > 0 && block(failure.stderr.join("\n"), { "aria-label": "stderr" })],
    ["Down since", firstBad && moment(firstBad.at)],
    ["Next attempt", server.retry_at && distance(server.retry_at, "in")],
    ["Searched in", command.length > 0 && !executable && path.replaceAll(":", " ")],
    ["What to do", next && step(next)],
  ];
}

const section = (title, children) => (children ? [make("h3", {}, title), ...children.filter(Boolean)] : []);

function facts({ server, ...detail }) {
  const { name, version } = server.server_info ?? {};
  return [
    ["Command", detail.command.join(" ")],
    ["Executable", detail.executable],
    ["Working directory", detail.cwd],
    ["URL", detail.url],
    ["Server", [name, version].filter(Boolean).join(" ")],
    ["Capabilities", server.capabilities.join(", ")],
    ["Last response", server.last_ok && distance(server.last_ok, "ago")],
    ["Consecutive failures", server.attempts && `${server.attempts}`],
    ["Unparsable output", detail.junk_lines && `${detail.junk_lines} lines on stdout, for example: ${detail.junk_sample}`],
    ["Log file", detail.log_file],
  ];
}
