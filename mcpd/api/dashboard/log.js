// The Log tab: the chosen server's stderr as it is written. Paused while the user has scrolled up.

import { addTo, byId, clean, isAtEnd, make } from "./dom.js";
import { line, now, streams } from "./state.js";
import { moment } from "./units.js";

const LINES = 1000;
const place = byId("log");
let followed = 0, fresh = [], drawing = 0;

/** Stop following the log. */
export function forgetLog() {
  if (followed) line.cancel(followed);
  followed = 0;
  fresh = [];
}

export async function showLog() {
  if (followed && place.dataset.server === now.chosen) {
    toEnd();
    return;
  }
  forgetLog();
  place.dataset.server = now.chosen;
  place.replaceChildren();
  const { id, answer } = line.ask("mcpd/logs", { server: now.chosen, lines: 300, follow: true });
  followed = id;
  streams.set(id, (params) => id === followed && put(params.line ?? `… ${params.missed} lines were skipped because they arrived too fast`));
  try {
    const { lines } = await answer;
    if (id !== followed) return;
    place.prepend(...lines.map(entry));
    toEnd();
  } catch (error) {
    if (id === followed) put(error.message);
  }
}

function put(text) {
  fresh.push(text);
  if (fresh.length > 2 * LINES) fresh = fresh.slice(-LINES); // nothing is drawn while the window is hidden or scrolled up
  later();
}

function later() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    const isRead = !isAtEnd(place);
    byId("newer").hidden = !isRead || !fresh.length;
    if (isRead || !fresh.length) return;
    addTo(place, LINES, ...fresh.slice(-LINES).map(entry));
    fresh = [];
  });
}

function toEnd() {
  place.scrollTop = place.scrollHeight;
  later();
}

function entry(text) {
  const [, at, rest] = /^(\d{4}-\d\d-\d\dT[\d:.]+Z) (.*)$/s.exec(text) ?? [null, null, text];
  return make("div", {}, at && moment(at), at && " ", make("bdi", {}, clean(rest)));
}

place.addEventListener("scroll", later);
byId("newer").addEventListener("click", toEnd);
