// What happened, to one server or to all: time, server, state, words, and who asked for it.

import { addTo, byId, clean, make } from "./dom.js";
import { moment } from "./units.js";

const MOST = 300;

/** `server`: null where all are of the same one. */
export function eventItem({ at, server, state, message, by }) {
  return make("li", { "data-state": state ?? "" },
    moment(at), " ",
    server && make("bdi", { className: "name" }, clean(server)), server && " ",
    state && make("b", { className: "state" }, clean(state)), state && " ",
    make("bdi", {}, clean(message)),
    by && make("span", { className: "dim" }, " by ", make("bdi", {}, clean(by))));
}

export const showPast = (entries) => byId("events").replaceChildren(...entries.map(eventItem));

export function addEvent(event) {
  const state = event.kind === "status" ? event.status?.status : event.kind;
  addTo(byId("events"), MOST, eventItem({ ...event, state, message: event.message || event.status?.reason || "" }));
}
