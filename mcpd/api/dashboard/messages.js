// The Messages tab: what mcpd and the chosen server send each other, live, with secrets masked.

import { addTo, block, byId, clean, make } from "./dom.js";
import { line, now, streams } from "./state.js";
import { moment, size } from "./units.js";

const MOST = 500;
const LONGEST = 16_384; // bytes of each message that are shown
const ARROWS = { "to-server": ["→", "to the server"], "from-server": ["←", "from the server"], note: ["·", "note"] };
const place = byId("messages");
let tapped = 0, fresh = [], drawing = 0, isPaused = false;

/** Stop the tap. */
export function leaveMessages() {
  if (tapped) line.cancel(tapped);
  tapped = 0;
  fresh = [];
}

export function showMessages() {
  if (tapped && place.dataset.server === now.chosen) return;
  leaveMessages();
  if (place.dataset.server !== now.chosen) place.replaceChildren();
  place.dataset.server = now.chosen;
  const { id, answer } = line.ask("mcpd/tap", { server: now.chosen, limit: LONGEST });
  tapped = id;
  streams.set(id, ({ frame }) => id === tapped && frame && put(frame));
  answer.catch((error) => {
    if (id === tapped) put({ at: new Date().toISOString(), direction: "note", text: error.message });
    streams.delete(id);
  });
}

function put(frame) {
  if (isPaused) return;
  fresh.push(frame);
  if (fresh.length > MOST) fresh.shift();
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    addTo(place, MOST, ...fresh.map(entry));
    fresh = [];
  });
}

function entry(frame) {
  const [arrow, words] = ARROWS[frame.direction] ?? ARROWS.note;
  const what = frame.method || (frame.direction === "note" ? frame.text : frame.id ? "response" : "message");
  const summary = make("summary", {}, moment(frame.at), " ", make("span", { title: words, "aria-label": words, role: "img" }, arrow), " ",
    make("bdi", { className: "name" }, clean(what)), " ",
    make("span", { className: "dim" }, [frame.id && `id ${clean(frame.id)}`, frame.bytes && size(frame.bytes), frame.cut && "cut",
      frame.dropped && `${frame.dropped} before it were dropped`].filter(Boolean).join(" · ")));
  const element = make("details", {}, summary);
  element.addEventListener("toggle", () => element.childElementCount === 1 && element.append(
    block(frame.message ? JSON.stringify(frame.message, null, 2) : frame.text || "(nothing)", { "aria-label": "Message" })));
  return make("li", {}, element);
}

byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  byId("pause").textContent = isPaused ? "Continue" : "Pause";
  byId("pause").setAttribute("aria-pressed", String(isPaused));
});
byId("clear").addEventListener("click", () => place.replaceChildren());

