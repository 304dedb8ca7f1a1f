// Making elements out of text that nobody here wrote: always as text, never as markup.

// What would reorder, hide or fake text: controls, bidirectional overrides, zero-width characters.
const HARMFUL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A server's text as it may be shown: what could deceive is spelt out. */
export function clean(text) {
  return String(text ?? "").replace(/\r\n/g, "\n").replace(HARMFUL, (found) =>
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
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** `3 s`, `5 min`, `2 h`, `4 d`, from seconds. */
export function lasted(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

export const ago = (at) => `${lasted((Date.now() - Date.parse(at)) / 1000)} ago`;

export const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });

/** `4.2 ms`, `1.3 s`. */
export function took(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

const SVG = "http://www.w3.org/2000/svg";

/** A line through `values` (null: nothing was measured then), newest at the right. */
export function sparkline(values, label, width = 96, height = 22) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, 0.001);
  const step = (width - 4) / Math.max(1, values.length - 1);
  const place = (value, index) => [2 + index * step, height - 2 - (value / top) * (height - 4)];
  const points = values.map((value, index) => (value === null ? null : place(value, index))).filter(Boolean);
  const base = document.createElementNS(SVG, "path");
  base.setAttribute("d", `M2 ${height - 1.5}H${width - 2}`);
  base.setAttribute("class", "base");
  svg.append(base);
  if (points.length > 1) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.map((point) => point.map((n) => n.toFixed(1)).join(",")).join(" "));
    svg.append(line);
  }
  if (points.length) {
    const [x, y] = points.at(-1);
    const dot = document.createElementNS(SVG, "circle");
    dot.setAttribute("cx", x.toFixed(1));
    dot.setAttribute("cy", y.toFixed(1));
    dot.setAttribute("r", "2");
    svg.append(dot);
  }
  return svg;
}
