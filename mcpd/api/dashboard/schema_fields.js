// Translate a JSON schema into form fields; what a form cannot represent becomes a JSON field. No DOM access.
//
// Schemas are untrusted: an invalid one becomes a JSON field, too.

const DEEPEST = 4, STEPS = 8, MOST_FIELDS = 100, MOST_IN_ALL = 300, MOST_CHOICES = 200, MOST_BOXES = 12;
const COMBINED = ["anyOf", "oneOf", "allOf"];

const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
const list = (value) => (Array.isArray(value) ? value : []);
const string = (value) => (typeof value === "string" ? value : "");
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The label of a value in a choice. */
export const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/**
 * `{ kind, title, about, facts, given }` and what belongs to the kind: the kinds are `choice` and `several` (with `choices`),
 * `text` (`format`), `number` (`isWhole`), `group` (`fields`), `list` (`item`), `json`.
 */
export function fieldOf(schema, whole = { root: schema, left: MOST_IN_ALL }, depth = 0) {
  const plain = settled(Object(schema), whole.root);
  const given = own(plain, "default");
  return {
    title: string(own(plain, "title")),
    about: string(own(plain, "description")),
    facts: facts(plain),
    given: given === undefined ? "" : shown(given),
    ...kindOf(plain, whole, depth),
  };
}

/** Resolve local references, and unions of one type with `null`. */
function settled(schema, root) {
  let plain = schema;
  for (let step = 0; step < STEPS; step += 1) {
    const { $ref, ...rest } = plain;
    const word = COMBINED.find((each) => list(own(plain, each)).length);
    const alternatives = list(own(plain, word)).filter((each) => own(Object(each), "type") !== "null");
    if (typeof own(plain, "$ref") === "string") plain = { ...pointed(root, $ref), ...rest };
    else if (alternatives.length === 1 && !own(plain, "properties")) {
      const { [word]: _, ...beside } = plain;
      plain = { ...Object(alternatives[0]), ...beside };
    } else break;
  }
  return plain;
}

/** Resolve a JSON pointer (RFC 6901) fragment within the document. */
function pointed(root, ref) {
  const parts = ref.startsWith("#/") ? ref.slice(2).split("/") : [];
  return Object(parts.reduce((at, part) => own(Object(at), part.replaceAll("~1", "/").replaceAll("~0", "~")), ref.startsWith("#") ? root : {}));
}

function kindOf(plain, whole, depth) {
  const choices = choicesOf(plain);
  if (choices.length && choices.length <= MOST_CHOICES) return { kind: "choice", choices };
  const types = [own(plain, "type")].flat().filter((type) => type !== "null");
  const type = types.length === 1 ? types[0] : "";
  if (type === "string") return { kind: "text", format: string(own(plain, "format")) };
  if (type === "integer" || type === "number") return { kind: "number", isWhole: type === "integer" };
  if (type === "boolean") return { kind: "choice", choices: [true, false].map((value) => ({ value, words: String(value) })) };
  if (depth >= DEEPEST) return { kind: "json" };
  if (type === "array") return severalOf(plain, whole, depth);
  const fields = type === "object" || type === undefined ? fieldsOf(plain, whole, depth) : [];
  return fields.length ? { kind: "group", fields } : { kind: "json" };
}

function choicesOf(plain) {
  const one = own(plain, "const");
  if (one !== undefined) return [{ value: one, words: shown(one) }];
  const values = list(own(plain, "enum"));
  if (values.length) return values.map((value) => ({ value, words: shown(value) }));
  const named = list(own(plain, "oneOf") ?? own(plain, "anyOf"));
  if (!named.every((each) => isObject(each) && own(each, "const") !== undefined)) return [];
  return named.map((each) => ({ value: each.const, words: string(own(each, "title")) || shown(each.const) }));
}

function severalOf(plain, whole, depth) {
  const items = own(plain, "items");
  if (!isObject(items)) return { kind: "json" };
  const item = fieldOf(items, whole, depth + 1);
  const isSet = item.kind === "choice" && own(plain, "uniqueItems") === true && item.choices.length <= MOST_BOXES;
  return isSet ? { kind: "several", choices: item.choices } : { kind: "list", item };
}

function fieldsOf(plain, whole, depth) {
  const properties = isObject(own(plain, "properties")) ? plain.properties : {};
  const names = Object.keys(properties);
  const isMore = COMBINED.flatMap((word) => list(own(plain, word))).some((each) =>
    own(Object(each), "$ref") !== undefined || Object.keys(Object(own(Object(each), "properties"))).some((name) => !Object.hasOwn(properties, name)));
  if (names.length > Math.min(MOST_FIELDS, whole.left) || isMore) return [];
  whole.left -= names.length; // a schema that refers to itself is small, and what it unfolds to is not
  const required = new Set(list(own(plain, "required")));
  return names.map((name) => ({ name, isRequired: required.has(name), shape: fieldOf(properties[name], whole, depth + 1) }));
}

const BOUNDS = [["minimum", "maximum", ""], ["minLength", "maxLength", "length "], ["minItems", "maxItems", "items "]];

function bounds(plain) {
  return BOUNDS.map(([least, most, what]) => {
    const [from, to] = [least, most].map((word) => own(plain, word)).map((each) => (typeof each === "number" ? each : null));
    if (from !== null && to !== null) return `${what}${from} to ${to}`;
    if (from !== null) return `${what}at least ${from}`;
    return to !== null && `${what}at most ${to}`;
  });
}

/** The type, format and bounds as text. */
function facts(plain) {
  const pattern = string(own(plain, "pattern"));
  return [
    [own(plain, "type")].flat().filter((type) => typeof type === "string").join(" or "),
    string(own(plain, "format")), ...bounds(plain), pattern && `like ${pattern}`,
  ].filter(Boolean).join(", ");
}
