// A form generated from a tool's input schema, with a JSON editor as the alternative.

import { button, clean, make } from "./dom.js";
import { groupOf } from "./form_fields.js";
import { parse } from "./daemon_connection.js";
import { fieldOf } from "./schema_fields.js";

const ARGUMENTS = "$.arguments"; // where the daemon's complaints begin

/**
 * `{ element, other, read, complain }`: `other` switches between the two; `read()` returns the arguments as JSON text, or null after showing the errors; `complain` shows
 * the daemon's errors, `[{ path, message }]`, and returns whether all of them had a field. `value`: what is shown at first.
 */
export function formFor(schema, { label = "Arguments as JSON", value: first = null } = {}) {
  const shape = fieldOf(schema);
  const fields = shape.kind === "group" ? groupOf(shape) : null;
  const words = make("textarea", { rows: 4, className: "code", value: "{}", spellcheck: false, autocomplete: "off" });
  const wrong = make("p", { className: "wrong", hidden: true });
  const asJson = make("div", { className: "field" }, make("label", {}, label, words), wrong);
  const none = make("p", { className: "dim" }, "This tool takes no arguments.");
  const asForm = fields?.element ?? none;
  const other = button("", change, { className: "quiet small" });
  const element = make("div", {}, asForm, asJson);
  let sink = { wrong: [], places: new Map() };

  function show(isJson) {
    asJson.hidden = !isJson;
    asForm.hidden = isJson;
    other.textContent = isJson ? "Use the form" : "Edit as JSON";
    other.hidden = isJson && !fields && !isEmpty(schema);
    scold("");
  }

  function scold(text) {
    wrong.textContent = clean(text);
    wrong.hidden = !text;
    words.toggleAttribute("aria-invalid", Boolean(text));
  }

  function readFields() {
    sink = { wrong: [], places: new Map() };
    return fields ? fields.read(sink, ARGUMENTS) : "{}";
  }

  /** The object that is written, or null. */
  function readJson() {
    try {
      const value = parse(words.value.trim() || "{}");
      if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
      scold("This must be a JSON object: { … }.");
    } catch (error) {
      scold(`Invalid JSON: ${error.message}.`);
    }
    words.focus();
    return null;
  }

  function change() {
    if (asJson.hidden) {
      words.value = JSON.stringify(parse(readFields()), null, 2);
      show(true);
      words.focus();
      return;
    }
    const value = readJson();
    if (!value) return;
    if (fields ? fields.fill(value) : !Object.keys(value).length) show(false);
    else scold("The form cannot represent all of these arguments.");
  }

  function read() {
    if (!asJson.hidden) return readJson() && (words.value.trim() || "{}");
    const text = readFields();
    sink.wrong[0]?.focus();
    return sink.wrong.length ? null : text;
  }

  function complain(problems) {
    if (!asJson.hidden) {
      scold(problems.map(({ path, message }) => `${path}: ${message}`).join("\n"));
      words.focus();
      return true;
    }
    for (const { path, message } of problems) sink.places.get(path)?.say(message);
    problems.map(({ path }) => sink.places.get(path)).find(Boolean)?.focus();
    return problems.every(({ path }) => sink.places.has(path));
  }

  show((!fields && !isEmpty(schema)) || (first !== null && !fields.fill(first)));
  if (first !== null) words.value = JSON.stringify(first, null, 2);
  return { element, other, read, complain };
}

/** Whether the schema describes no arguments. */
function isEmpty(schema) {
  const said = Object.keys(Object(schema)).filter((word) => !["type", "properties", "additionalProperties", "$schema", "title", "required"].includes(word));
  return !said.length && !Object.keys(Object(schema?.properties)).length && typeof schema?.additionalProperties !== "object";
}

