// Making elements out of text that nobody here wrote: always as text, never as markup.

// What would reorder, hide or fake text: controls, bidirectional overrides, zero-width characters.
const HARMFUL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A server's text as it may be shown: what could deceive is spelt out. */
export function clean(text) {
  const words = typeof text === "object" && text !== null ? JSON.stringify(text) : String(text ?? "");
  return words.replace(/\r\n/g, "\n").replace(HARMFUL, (found) =>
    `‹${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/** An element. `facts`: properties, attributes (with `aria-`, `data-`, …), `on…` listeners; children are text or nodes. */
export function make(tag, facts = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const button = (words, onclick, facts = {}) => make("button", { type: "button", onclick, ...facts }, words);

export const byId = (id) => document.getElementById(id);

/** Without touching the document when nothing changes: that would disturb a selection, and readers of the screen. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A text that may be long, in a box that scrolls: by key, too. */
export const block = (text, facts = {}) => make("pre", { tabIndex: 0, ...facts }, clean(text));

/** Whether its newest is seen; what is not on the screen counts as seen. */
export const isAtEnd = (scroller) => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;

/** Add to what is looked at from its end, and forget its oldest. Measuring is dear: many at once, where many come. */
export function addTo(list, most, ...items) {
  const scroller = list.closest("[tabindex]");
  const wasAtEnd = isAtEnd(scroller);
  list.append(...items);
  while (list.childElementCount > most) list.firstElementChild.remove();
  if (wasAtEnd) scroller.scrollTop = scroller.scrollHeight;
}
