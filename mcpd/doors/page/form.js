// A form made from a tool's input schema. Its values stay the text that was typed, so no number loses digits.

import { clean, make } from "./dom.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const MOST_FIELDS = 100;

const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

function kindOf(schema) {
  if (!schema || typeof schema !== "object") return "json";
  if (Array.isArray(schema.enum) && schema.enum.length && schema.enum.length <= 200) return "choice";
  const types = Array.isArray(schema.type) ? schema.type.filter((type) => type !== "null") : [schema.type];
  if (types.length !== 1) return "json";
  if (types[0] === "string") return "text";
  if (types[0] === "integer" || types[0] === "number") return "number";
  return types[0] === "boolean" ? "truth" : "json";
}

function field(id, name, schema, required) {
  const kind = kindOf(schema);
  const facts = { id, name, "aria-describedby": `${id}-about`, autocomplete: "off", spellcheck: false };
  const given = own(Object(schema), "default");
  const hint = given === undefined ? "" : `default: ${clean(JSON.stringify(given)).slice(0, 80)}`;
  let input;
  if (kind === "choice" || kind === "truth") {
    const values = kind === "truth" ? [true, false] : schema.enum;
    input = make("select", facts, ...(required ? [] : [make("option", { value: "" }, hint || "—")]),
      ...values.map((value) => make("option", { value: JSON.stringify(value) },
        clean(typeof value === "string" ? value : JSON.stringify(value)))));
  } else if (kind === "text") {
    input = make("textarea", { ...facts, rows: 1, placeholder: hint });
  } else if (kind === "number") {
    input = make("input", { ...facts, inputMode: "decimal", placeholder: hint || schema.type });
  } else {
    input = make("textarea", { ...facts, rows: 2, className: "code", placeholder: hint || "JSON" });
  }
  const about = clean(typeof schema?.description === "string" ? schema.description : "").slice(0, 1000);
  const row = make("div", { className: "field" },
    make("label", { htmlFor: id }, make("bdi", {}, clean(name)), required ? make("span", { className: "must" }, " required") : null),
    input,
    make("p", { id: `${id}-about`, className: "dim" }, about));

  /** JSON text; null when it is left out. Throws what is wrong. */
  const read = () => {
    const text = input.value;
    if (kind === "choice" || kind === "truth") return text === "" ? null : text;
    if (kind === "text") return text === "" && !required ? null : JSON.stringify(text);
    const trimmed = text.trim();
    if (trimmed === "") {
      if (required) throw new Error(`${clean(name)} is required`);
      return null;
    }
    if (kind === "number" && !NUMBER.test(trimmed)) throw new Error(`${clean(name)} must be a number`);
    try {
      JSON.parse(trimmed);
    } catch (error) {
      throw new Error(`${clean(name)} must be JSON: ${error.message}`);
    }
    return trimmed;
  };
  return { row, name, read };
}

/** `{ element, read }`: `read()` is the arguments as JSON text, or throws what is wrong. */
export function formFor(schema, prefix) {
  const properties = Object(own(Object(schema), "properties"));
  const names = Object.keys(properties);
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  const isPlain = names.length > 0 && names.length <= MOST_FIELDS && !["anyOf", "oneOf", "allOf", "$ref"].some((word) => own(schema, word));
  const fields = isPlain ? names.map((name, index) => field(`${prefix}-${index}`, name, properties[name], required.has(name))) : [];
  const asText = make("textarea", { id: `${prefix}-all`, rows: 4, className: "code", value: "{}", spellcheck: false });
  const whole = make("div", { className: "field" }, make("label", { htmlFor: `${prefix}-all` }, "Arguments as JSON"), asText);
  const takesNone = !names.length && own(Object(schema), "additionalProperties") === false;
  const element = make("div", {}, ...(isPlain ? fields.map((each) => each.row) : takesNone ? [make("p", { className: "dim" }, "It takes no arguments.")] : [whole]));

  const read = () => {
    if (takesNone) return "{}";
    if (!isPlain) {
      const value = JSON.parse(asText.value || "{}");
      if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("the arguments must be an object");
      return asText.value || "{}";
    }
    const parts = [];
    for (const each of fields) {
      const text = each.read();
      if (text !== null) parts.push(`${JSON.stringify(each.name)}:${text}`);
    }
    return `{${parts.join(",")}}`;
  };
  return { element, read };
}
