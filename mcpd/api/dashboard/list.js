// The list of servers: state, summary, latency and actions of each.

import { isOn, reconnect, toggle } from "./actions.js";
import { button, byId, clean, make, plain, setText } from "./dom.js";
import { sparkline } from "./sparkline.js";
import { figures, matches, needsAttention, now, servers } from "./state.js";
import { count, memorySize, took } from "./units.js";

const rows = new Map(); // name → its elements

/** The servers that match the filters, and the chosen one: first those that need attention. */
export function shown() {
  const isWanted = (server) => (!now.wanted || matches(server.name)) && (!now.onlyTrouble || needsAttention(server));
  const all = [...servers.values()].filter((server) => server.name === now.chosen || isWanted(server));
  return [...all.filter(needsAttention), ...all.filter((server) => !needsAttention(server))];
}

export const rowOf = (name) => rows.get(name);

/** Update the rows. `choose` is called with the name of the server that the user selects. */
export function drawList(choose) {
  const list = byId("servers"), wanted = shown(), focused = list.contains(document.activeElement) && document.activeElement;
  const lastTrouble = wanted.filter(needsAttention).length - 1;
  for (const [name, row] of rows) {
    if (wanted.some((server) => server.name === name)) continue;
    row.item.remove();
    rows.delete(name);
  }
  wanted.forEach((server, index) => {
    const row = rows.get(server.name) ?? newRow(server.name, choose);
    fill(row, server);
    row.item.classList.toggle("boundary", index === lastTrouble && index < wanted.length - 1);
    if (list.children[index] !== row.item) list.insertBefore(row.item, list.children[index] ?? null);
  });
  if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true }); // moving a row takes its focus
  byId("no-match").hidden = wanted.length > 0 || servers.size === 0;
}

function newRow(name, choose) {
  const label = clean(name);
  const state = make("span", { className: "state" });
  const about = make("span", { className: "about" });
  const latency = make("span", { className: "latency" });
  const pick = make("button", { type: "button", className: "pick", title: label, onclick: () => choose(name) },
    make("span", { className: "first" }, make("bdi", { className: "name" }, label), state), make("span", { className: "second" }, about, latency));
  const again = button("↻", () => reconnect(name), { className: "quiet again", "aria-label": `Reconnect ${label}`, title: "Reconnect (r)" });
  const onOff = button("", () => toggle(name), { className: "switch", role: "switch", "aria-label": `${label}: on`, title: "Enable or disable (t)" });
  const row = { pick, state, about, latency, again, onOff };
  row.item = make("li", {}, pick, make("span", { className: "acts" }, again, onOff));
  rows.set(name, row);
  return row;
}

function fill(row, server) {
  row.item.dataset.state = server.status;
  row.item.classList.toggle("chosen", server.name === now.chosen);
  row.pick.setAttribute("aria-current", String(server.name === now.chosen));
  setText(row.state, server.status);
  setText(row.about, plain(evidence(server)));
  row.onOff.setAttribute("aria-checked", String(isOn(server)));
  row.again.disabled = !isOn(server);
  fillLatency(row, figures.get(server.name));
}

/** One line: the error, else the number of tools, else the reason for the state. */
function evidence(server) {
  if (server.status === "failed" || server.status === "needs-auth") return server.last_error?.summary || server.reason;
  if (server.status === "connected") {
    const memory = figures.get(server.name)?.cost?.memory;
    return `${count(server.tools, "tool")}${memory ? ` · ${memorySize(memory)}` : ""}`;
  }
  if (needsAttention(server)) return server.last_error?.summary || server.reason;
  return server.reason;
}

function fillLatency(row, known) {
  const p50 = known?.counts.p50_ms ?? null;
  const key = JSON.stringify([p50, known?.points]);
  if (row.key === key) return;
  row.key = key;
  row.latency.replaceChildren();
  if (p50 === null) return;
  if (known.points.some((value) => value !== null)) row.latency.append(sparkline(known.points, "Latency of the last two minutes"));
  row.latency.append(`p50 ${took(p50)}`);
}
