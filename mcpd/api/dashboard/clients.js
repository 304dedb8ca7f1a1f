// The page of connected clients: editors, agents, shells, and what they use.

import { byId, clean, complaint, make } from "./dom.js";
import { line, now } from "./state.js";
import { distance } from "./units.js";

const EVERY = 2000;
const CONNECTION_TYPES = { page: "dashboard" };
let timer = 0, drawn = "";

/** Poll while this page is shown and the window is visible. */
export async function showClients() {
  clearTimeout(timer);
  if (now.page !== "clients") return;
  timer = setTimeout(showClients, EVERY);
  if (document.hidden) return;
  try {
    fill((await line.get("mcpd/clients")).clients);
  } catch (error) {
    drawn = "";
    byId("clients").replaceChildren(complaint(error.message));
  }
}

function fill(clients) {
  const key = JSON.stringify(clients);
  if (key === drawn) return;
  drawn = key;
  const cell = (label, ...content) => make("td", { "data-label": label }, ...content);
  const head = ["Client", "Process", "Via", "Connected", "Sees", "Revision", "Calls", "Servers"];
  byId("clients").replaceChildren(make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((label) => make("th", { scope: "col" }, label)))),
    make("tbody", {}, ...clients.map((client) => make("tr", {},
      make("th", { scope: "row" }, make("bdi", {}, clean(client.name))),
      cell("Process", client.pid === null ? "unknown" : String(client.pid)),
      cell("Via", clean(CONNECTION_TYPES[client.via] ?? client.via)),
      cell("Connected", distance(client.since, "for")),
      cell("Sees", clean(scope(client.sees))),
      cell("Revision", clean(client.protocol_version) || "–"),
      cell("Calls", `${client.calls}${client.in_flight ? ` (${client.in_flight} running)` : ""}`),
      cell("Servers", make("bdi", {}, clean(used(client.servers)) || "–")))))));
}

function scope(sees) {
  if (!sees) return "–";
  if (!sees.startsWith("*")) return sees;
  return sees === "*" ? "all servers" : `profile ${sees.slice(1)}`;
}

const used = (servers) => Object.entries(servers).map(([name, { calls }]) => (calls ? `${name} (${calls})` : name)).join(", ");
