// Format times, sizes and numbers.

import { make, setText } from "./dom.js";

/** `3 s`, `5 min`, `2 h`, `4 d`, from seconds. */
export function lasted(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** `4.2 ms`, `1.3 s`. */
export function took(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** `312 B`, `1.4 KiB`, `2.0 MiB`. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

/** `113 MiB`: memory, which is never known more exactly. */
export const memorySize = (bytes) => `${Math.max(1, Math.round(bytes / (1 << 20)))} MiB`;

/** `1 tool`, `3 tools`. */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long" });

/** The time of day, with the date if it is not today. */
export function clock(at) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? TIME.format(date) : `${DAY.format(date)} ${TIME.format(date)}`;
}

/** A time element for an ISO 8601 timestamp; its tooltip has the date and zone. */
export function moment(at) {
  return Number.isNaN(Date.parse(at)) ? make("time") : make("time", { dateTime: at, title: WHOLE.format(new Date(at)) }, clock(at));
}

const WORDS = {
  ago: (seconds) => `${lasted(seconds)} ago`,
  for: (seconds) => `for ${lasted(seconds)}`,
  in: (seconds) => (seconds < 0 ? `in ${lasted(-seconds)}` : "now"),
};

/** The distance from now, formatted by `how` and updated by `tick`. */
export function distance(at, how) {
  const element = moment(at);
  element.dataset.how = how;
  element.textContent = WORDS[how]((Date.now() - Date.parse(at)) / 1000);
  return element;
}

/** Update all distances. */
export function tick() {
  for (const each of document.querySelectorAll("time[data-how]")) {
    setText(each, WORDS[each.dataset.how]((Date.now() - Date.parse(each.dateTime)) / 1000));
  }
}
