// The fields of a form, one for each shape. What was typed stays the text that was typed, so no number loses digits.
//
// A field is `{ element, read, fill }`. `read(sink, path)` returns its JSON text, or null if it is left out; it adds errors to
// `sink.wrong` and registers in `sink.places` who shows errors at a path. `fill(value)` shows a value, or returns `false`.

import { button, clean, make } from "./dom.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const LONGEST_ABOUT = 1000, LONGEST_HINT = 80;
const INPUTS = { date: "date", time: "text", "date-time": "text", email: "email", uri: "url" };

let last = 0;
const newId = () => `field-${++last}`;

/** `isRequired`: the field must be filled in. */
export function fieldFor(name, shape, isRequired) {
  if (shape.kind === "group") return group(name, shape, isRequired);
  if (shape.kind === "list") return several(name, shape, isRequired);
  if (shape.kind === "several") return boxes(name, shape, isRequired);
  return single(name, shape, isRequired);
}

// ── what is common ──────────────────────────────────────────────────────────────────────────────────

function caption(name, shape, isRequired) {
  const words = [isRequired && "required", shape.facts].filter(Boolean).join(" · ");
  return [make("bdi", { className: "code" }, clean(name)), words && make("span", { className: "dim" }, ` ${clean(words).slice(0, 200)}`)];
}

/** Around what belongs together. */
function frame(name, shape, isRequired, id, inner) {
  return make("fieldset", { className: "field", tabIndex: -1, "aria-describedby": `${id}-wrong ${id}-about` },
    make("legend", {}, ...caption(name, shape, isRequired)), inner);
}

function about(shape, id) {
  const title = shape.title && `${shape.title}. `;
  return make("p", { id: `${id}-about`, className: "dim about" }, clean(title + shape.about).slice(0, LONGEST_ABOUT));
}

/** The error message of `input`; typing clears it. */
function complaint(id, element, input) {
  const place = make("p", { id: `${id}-wrong`, className: "wrong", hidden: true });
  const say = (words) => {
    place.textContent = clean(words);
    place.hidden = !words;
    if (words) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  element.addEventListener("input", () => say(""));
  return { place, say, focus: () => input.focus() };
}

function complain(sink, wrong, words) {
  sink.wrong.push(wrong);
  wrong.say(words);
  return null;
}

// ── one value ───────────────────────────────────────────────────────────────────────────────────────

function single(name, shape, isRequired) {
  const id = newId();
  const input = inputFor(shape, isRequired, {
    id, name, "aria-describedby": `${id}-wrong ${id}-about`, "aria-required": isRequired ? "true" : null, autocomplete: "off", spellcheck: false,
  });
  const element = make("div", { className: "field" }, make("label", { htmlFor: id }, ...caption(name, shape, isRequired)), input);
  const wrong = complaint(id, element, input);
  element.append(wrong.place, about(shape, id));

  const read = (sink, path) => {
    sink.places.set(path, wrong);
    wrong.say("");
    const text = shape.kind === "text" ? input.value : input.value.trim();
    if (text === "" && !isRequired) return null;
    if (text === "") return complain(sink, wrong, `This field is required.${shape.kind === "text" ? " To send an empty text, edit the arguments as JSON." : ""}`);
    if (shape.kind === "text") return JSON.stringify(text);
    if (shape.kind === "choice") return text;
    if (shape.kind === "number" && !NUMBER.test(text)) return complain(sink, wrong, "Enter a number, such as 12 or -0.5.");
    try {
      JSON.parse(text);
      return text;
    } catch (error) {
      return complain(sink, wrong, `Invalid JSON: ${error.message}.`);
    }
  };
  const fill = (value) => {
    if (value === undefined) input.value = "";
    else if (shape.kind === "text") input.value = typeof value === "string" ? value : "";
    else input.value = JSON.stringify(value);
    return value === undefined || input.value === (shape.kind === "text" ? value : JSON.stringify(value));
  };
  return { element, read, fill };
}

function inputFor(shape, isRequired, facts) {
  const hint = shape.given === "" ? "" : `default: ${clean(shape.given).slice(0, LONGEST_HINT)}`;
  if (shape.kind === "choice") {
    const none = isRequired && shape.choices.length === 1 ? [] : [make("option", { value: "" }, hint || (isRequired ? "choose …" : "—"))];
    return make("select", facts, ...none, ...shape.choices.map(({ value, words }) => make("option", { value: JSON.stringify(value) }, clean(words))));
  }
  if (shape.kind === "text" && Object.hasOwn(INPUTS, shape.format)) return make("input", { ...facts, type: INPUTS[shape.format], placeholder: hint });
  if (shape.kind === "text") return make("textarea", { ...facts, rows: 1, placeholder: hint });
  if (shape.kind === "number") return make("input", { ...facts, inputMode: "decimal", placeholder: hint });
  return make("textarea", { ...facts, rows: 2, className: "code", placeholder: hint || "JSON" });
}

// ── several of a few ────────────────────────────────────────────────────────────────────────────────

function boxes(name, shape, isRequired) {
  const id = newId();
  const inputs = shape.choices.map(({ value }) => make("input", { type: "checkbox", value: JSON.stringify(value) }));
  const inner = make("div", { className: "inner" },
    ...inputs.map((input, index) => make("label", { className: "box" }, input, make("bdi", {}, clean(shape.choices[index].words)))));
  const element = frame(name, shape, isRequired, id, inner);
  const wrong = complaint(id, element, inputs[0]);
  inner.append(wrong.place, about(shape, id));
  const read = (sink, path) => {
    sink.places.set(path, wrong);
    wrong.say("");
    const chosen = inputs.filter((input) => input.checked).map((input) => input.value);
    return chosen.length || isRequired ? `[${chosen.join(",")}]` : null;
  };
  const fill = (value = []) => {
    const wanted = Array.isArray(value) ? value.map((each) => JSON.stringify(each)) : [];
    for (const input of inputs) input.checked = wanted.includes(input.value);
    return Array.isArray(value) && wanted.every((each) => inputs.some((input) => input.value === each));
  };
  return { element, read, fill };
}

// ── a list ──────────────────────────────────────────────────────────────────────────────────────────

function several(name, shape, isRequired) {
  const id = newId();
  let rows = [], made = 0;
  const place = make("div");
  const more = button("Add", () => add().element.querySelector("input, textarea, select, button")?.focus(), { className: "small", "aria-label": `Add to ${clean(name)}` });
  const inner = make("div", { className: "inner" }, place, make("p", {}, more));
  const element = frame(name, shape, isRequired, id, inner);
  const wrong = complaint(id, element, more);
  inner.append(wrong.place, about(shape, id));

  const add = () => {
    const label = `${name} ${++made}`;
    const row = fieldFor(label, shape.item, true);
    const drop = button("Remove", () => {
      rows = rows.filter((each) => each !== row);
      wrap.remove();
      more.focus();
    }, { className: "small", "aria-label": `Remove ${clean(label)}` });
    const wrap = make("div", { className: "row" }, row.element, drop);
    rows.push(row);
    place.append(wrap);
    return row;
  };
  const read = (sink, path) => {
    sink.places.set(path, wrong);
    wrong.say("");
    const texts = rows.map((row, index) => row.read(sink, `${path}[${index}]`));
    return texts.length || isRequired ? `[${texts.join(",")}]` : null;
  };
  const fill = (value = []) => {
    rows = [];
    place.replaceChildren();
    return Array.isArray(value) && value.every((each) => add().fill(each));
  };
  return { element, read, fill };
}

// ── an object ───────────────────────────────────────────────────────────────────────────────────────

function group(name, shape, isRequired) {
  const id = newId();
  const inner = groupOf(shape);
  inner.element.className = "inner";
  const element = frame(name, shape, isRequired, id, inner.element);
  const wrong = complaint(id, element, element);
  inner.element.prepend(about(shape, id), wrong.place);
  const read = (sink, path) => {
    sink.places.set(path, wrong);
    wrong.say("");
    const attempt = { wrong: [], places: sink.places };
    const text = inner.read(attempt, path);
    if (!isRequired && inner.isEmpty()) { // what it requires is required of those who give it
      for (const each of attempt.wrong) each.say("");
      return null;
    }
    sink.wrong.push(...attempt.wrong);
    return text;
  };
  return { element, read, fill: (value) => inner.fill(value ?? {}) };
}

/** The fields of an object, without a border: `{ element, read, fill, isEmpty }`. */
export function groupOf(shape) {
  const fields = shape.fields.map(({ name, isRequired, shape: each }) => ({ name, ...fieldFor(name, each, isRequired) }));
  const element = make("div", {}, ...fields.map((field) => field.element));
  const read = (sink, path) => {
    const parts = fields.map((field) => [field.name, field.read(sink, `${path}.${field.name}`)]).filter(([, text]) => text !== null);
    return `{${parts.map(([name, text]) => `${JSON.stringify(name)}:${text}`).join(",")}}`;
  };
  const fill = (value) =>
    typeof value === "object" && value !== null && !Array.isArray(value) &&
    Object.keys(value).every((name) => fields.some((field) => field.name === name)) &&
    fields.map((field) => field.fill(Object.hasOwn(value, field.name) ? value[field.name] : undefined)).every(Boolean);
  const isEmpty = () => [...element.querySelectorAll("input, textarea, select")].every((input) =>
    (input.type === "checkbox" ? !input.checked : input.value === "" || (input.options?.length === 1)));
  return { element, read, fill, isEmpty };
}
