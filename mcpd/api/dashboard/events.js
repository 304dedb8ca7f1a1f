// Event entries: time, server, state, message, and who caused it. All events, and those of the chosen server.

import { addTo, byId, clean, complaint, make, withCode } from "./dom.js";
import { line, now } from "./state.js";
import { moment } from "./units.js";

const MOST = 300, PAST = 100;

/** `server`: null if the list is about one server. `what`: the kind of an event that is not a state change. */
export function eventItem({ at, server, what, state, message, by, times = 1 }) {
  const said = state ?? what ?? "";
  return make("li", { "data-state": said },
    moment(at), " ",
    server && make("bdi", { className: "name" }, clean(server)), server && " ",
    said && make("b", { className: "state" }, clean(said)), said && " ",
    make("bdi", {}, ...withCode(message)),
    times > 1 && make("span", { className: "dim" }, ` (${times} times)`),
    by && make("span", { className: "dim" }, " by ", make("bdi", {}, clean(by))));
}

export const showPast = (entries) => byId("all-events").replaceChildren(...entries.map(eventItem));

/** The events of the chosen server, for its tab. */
export async function showServerEvents() {
  const name = now.chosen, place = byId("events");
  if (place.dataset.server !== name) place.replaceChildren();
  try {
    const { entries } = await line.get("mcpd/history", { server: name, limit: PAST });
    if (name !== now.chosen) return;
    place.dataset.server = name;
    place.replaceChildren(...entries.map((entry) => eventItem({ ...entry, server: null })));
    place.scrollTop = place.scrollHeight;
  } catch (error) {
    if (name === now.chosen) place.replaceChildren(make("li", {}, complaint(error.message)));
  }
}

export function addEvent(event) {
  const state = event.kind === "status" ? event.status?.status : event.kind;
  const entry = { ...event, state, message: event.message || event.status?.reason || "" };
  addTo(byId("all-events"), MOST, eventItem(entry));
  const place = byId("events");
  if (event.server === place.dataset.server && event.server === now.chosen) addTo(place, MOST, eventItem({ ...entry, server: null }));
}
