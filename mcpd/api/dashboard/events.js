// Event entries: time, server, state, message, and who caused it.

import { addTo, byId, clean, make } from "./dom.js";
import { moment } from "./units.js";

const MOST = 300;

/** `server`: null if the list is about one server. `what`: the kind of an event that is not a state change. */
export function eventItem({ at, server, what, state, message, by }) {
  const said = state ?? what ?? "";
  return make("li", { "data-state": said },
    moment(at), " ",
    server && make("bdi", { className: "name" }, clean(server)), server && " ",
    said && make("b", { className: "state" }, clean(said)), said && " ",
    make("bdi", {}, clean(message)),
    by && make("span", { className: "dim" }, " by ", make("bdi", {}, clean(by))));
}

export const showPast = (entries) => byId("events").replaceChildren(...entries.map(eventItem));

export function addEvent(event) {
  const state = event.kind === "status" ? event.status?.status : event.kind;
  addTo(byId("events"), MOST, eventItem({ ...event, state, message: event.message || event.status?.reason || "" }));
}
