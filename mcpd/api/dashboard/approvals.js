// Calls that wait for a person's approval: who wants what, and the answers.

import { say } from "./actions.js";
import { button, byId, clean, make, plain } from "./dom.js";
import { line } from "./state.js";
import { distance } from "./units.js";

const ANSWERS = [
  ["once", "Allow once"],
  ["session", "Allow for this session"],
  ["always", "Always allow"],
  ["no", "Deny"],
];
let drawn = "";

export async function showApprovals() {
  let waiting = [];
  try {
    waiting = (await line.get("mcpd/approvals")).approvals;
  } catch {
    // disconnected: they are shown again when the page is connected
  }
  const key = waiting.map(({ id, since }) => `${id} ${since}`).join();
  if (key === drawn) return;
  drawn = key;
  byId("approvals").hidden = !waiting.length;
  byId("approvals-list").replaceChildren(...waiting.map(item));
}

function item({ id, client, server, kind, name, arguments: given, rule, reason, expires_at: until }) {
  const buttons = ANSWERS.map(([answer, label]) =>
    button(label, () => send(id, answer), { className: "small", "aria-label": `${label}: ${clean(name)}, ${clean(client)}` }));
  return make("li", {},
    make("p", {},
      make("bdi", { className: "name" }, clean(client)), ` wants to use the ${clean(kind)} `,
      make("bdi", { className: "name" }, clean(name)), " of ", make("bdi", {}, clean(server)),
      reason && ": ", reason && make("bdi", {}, clean(reason)), ". ",
      make("span", { className: "dim" }, `Rule: ${clean(rule)}. Denied `, distance(until, "in"), ".")),
    given && make("pre", { tabIndex: 0, "aria-label": "Arguments" }, clean(given)),
    make("p", { className: "acts" }, ...buttons));
}

async function send(id, answer) {
  try {
    await line.get("mcpd/approve", { id, decision: answer });
  } catch (error) {
    say(plain(error.message));
  }
  showApprovals();
}
