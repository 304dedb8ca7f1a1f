// The Evidence tab: what explains the chosen server's state.

import { block, byId, clean, make } from "./dom.js";
import { eventItem } from "./events.js";
import { line, now } from "./state.js";
import { distance, took } from "./units.js";

export async function showEvidence() {
  const name = now.chosen, place = byId("panel-evidence");
  try {
    const detail = await line.get("mcpd/server", { server: name });
    if (name === now.chosen) place.replaceChildren(...parts(detail));
  } catch (error) {
    if (name === now.chosen) place.replaceChildren(make("p", { className: "trouble panel" }, clean(error.message)));
  }
}

function parts(detail) {
  const { last_error: failure, status } = detail.server;
  return [
    make("dl", {}, ...facts(detail).map(([what, value]) =>
      make("div", {}, make("dt", {}, what), make("dd", {}, value instanceof Node ? value : make("bdi", {}, clean(value)))))),
    ...section("Last failure", failure && status === "connected" && [ // otherwise it is shown above
      make("p", { className: "past" }, make("bdi", {}, clean(failure.message)), " (", clean(failure.kind), ", ", distance(failure.at, "ago"), ")"),
      failure.stderr.length > 0 && block(failure.stderr.join("\n"), { "aria-label": "stderr output" })]),
    ...section("Connection steps", detail.negotiation.length > 0 && [make("ol", { className: "steps" }, ...detail.negotiation.map((step) =>
      make("li", {}, make("b", {}, clean(step.step)), " ", make("bdi", {}, clean(step.outcome)), make("span", { className: "dim" }, ` ${took(step.ms)}`))))]),
    ...section("Recent events", detail.history.length > 0 && [make("ol", { className: "steps" },
      ...detail.history.map((entry) => eventItem({ ...entry, server: null })))]),
    ...section("Definition", [block(JSON.stringify(detail.definition, null, 2), { "aria-label": "Definition" })]),
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
  ].filter(([, value]) => value);
}
