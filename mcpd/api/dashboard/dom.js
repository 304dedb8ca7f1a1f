// Create elements from untrusted text: always as text nodes, never as markup.

// Characters that reorder, hide or fake text: controls, bidirectional overrides, zero-width characters.
const HARMFUL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Return a server's text with deceptive characters replaced by their code points. */
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

/** Set the text only if it differs, so that selections and screen readers are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Untrusted text split into nodes, with `quoted` parts as code elements. */
export const withCode = (text) =>
  clean(text).split(/`([^`]*)`/).map((part, index) => (index % 2 ? make("code", {}, part) : part));

/** Untrusted text for a place without markup: the quotation marks of code are left out. */
export const plain = (text) => clean(text).replace(/`([^`]*)`/g, "$1");

/** An error message in a panel. */
export const complaint = (text) => make("p", { className: "trouble panel" }, ...withCode(text));

/** A scrollable, focusable box for text that may be long. */
export const block = (text, facts = {}) => make("pre", { tabIndex: 0, ...facts }, clean(text));

/** Whether the end of the list is visible. A hidden list counts as at its end. */
export const isAtEnd = (scroller) => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;

/** Append to a list, drop its oldest entries, and keep it scrolled to the end. Measures layout once per call: add in batches. */
export function addTo(list, most, ...items) {
  const scroller = list.closest("[tabindex]");
  const wasAtEnd = isAtEnd(scroller);
  list.append(...items);
  while (list.childElementCount > most) list.firstElementChild.remove();
  if (wasAtEnd) scroller.scrollTop = scroller.scrollHeight;
}
