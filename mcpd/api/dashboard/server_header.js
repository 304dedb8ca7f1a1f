// The header of the chosen server: state, reason, duration and actions.

import { isOn, reconnect, toggle } from "./actions.js";
import { block, button, byId, clean, make, withCode } from "./dom.js";
import { edit, remove } from "./edit.js";
import { loginButton, loginKey, loginPanel } from "./server_login.js";
import { chosen, figures, now } from "./state.js";
import { turnTo } from "./tabs.js";
import { count, distance, memorySize, moment, took } from "./units.js";

export function drawHead() {
  const server = chosen(), known = figures.get(now.chosen), place = byId("head");
  const key = JSON.stringify([server, known?.counts, known?.cost, known?.cpu, known?.clients, loginKey(now.chosen)]);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!server) {
    place.replaceChildren();
    return;
  }
  const focused = place.contains(document.activeElement) && document.activeElement.id;
  place.replaceChildren(...[
    make("div", { className: "title" },
      make("h2", {}, make("bdi", {}, clean(server.name))),
      make("span", { className: "acts" },
        server.status === "needs-auth" && loginButton(server.name, drawHead),
        button("Reconnect", () => reconnect(server.name), { id: "reconnect", disabled: !isOn(server), title: "r" }),
        button(isOn(server) ? "Disable" : "Enable", () => toggle(server.name), { id: "toggle", title: "t" }),
        button("Edit", () => edit(server.name), { id: "edit" }),
        button("Remove", () => remove(server.name), { id: "remove" }))),
    make("p", { "data-state": server.status },
      make("b", { className: "state" }, server.status), " ", make("span", { className: "dim" }, distance(server.since, "for")),
      ...(server.reason ? [" · ", make("bdi", {}, ...withCode(server.reason))] : [])),
    make("p", { className: "facts dim" }, ...facts(server, known).map((fact, index) => make("span", {}, index ? " · " : "", clean(fact)))),
    loginPanel(server.name),
    server.last_error && trouble(server),
    ...[server.degraded, ...server.warnings].filter(Boolean).map((warning) => make("p", { className: "past" }, ...withCode(warning))),
  ].filter(Boolean));
  const words = place.querySelector("pre");
  if (words) words.scrollTop = words.scrollHeight; // the cause is in the last lines
  if (focused) byId(focused)?.focus();
}

function facts(server, known) {
  const { counts, cost, cpu, clients } = known ?? {};
  return [
    server.server_info?.title || server.server_info?.name,
    server.server_info?.version,
    server.pid && `pid ${server.pid}`,
    server.transport,
    server.protocol_version && `MCP ${server.protocol_version}`,
    server.restarts && count(server.restarts, "restart"),
    counts?.calls && `${count(counts.calls, "call")}, ${counts.errors + counts.lost} failed`,
    clients && count(clients, "client"),
    cost && `${memorySize(cost.memory)}${cost.processes > 1 ? ` in ${cost.processes} processes` : ""}${cpu === null ? "" : `, ${cpu.toFixed(1)} % CPU`}`,
    counts?.p95_ms && `p50 ${took(counts.p50_ms)}, p95 ${took(counts.p95_ms)}`,
  ].filter(Boolean).map(String);
}

/** The last error; a single line if the server has recovered. */
function trouble(server) {
  const { kind, message, at, stderr } = server.last_error;
  const words = make("bdi", {}, ...withCode(message));
  if (server.status === "connected") return make("p", { className: "past" }, "Previous error: ", words, " (", distance(at, "ago"), ")");
  return make("div", { className: "trouble panel" },
    make("p", {}, words),
    make("p", { className: "when" }, clean(kind), " · ", distance(at, "ago"),
      ...(server.retry_at ? [" · next attempt ", distance(server.retry_at, "in"), " (", moment(server.retry_at), ")"] : []),
      " · ", button("Why?", () => turnTo("evidence", true), { id: "why", className: "small" })),
    stderr.length > 0 && block(stderr.join("\n"), { "aria-label": "Last stderr output" }));
}
