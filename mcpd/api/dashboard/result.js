// The result of a call. Images and sounds are shown only if their type cannot contain anything else.

import { say } from "./actions.js";
import { block, button, clean, make, setText } from "./dom.js";
import { size } from "./units.js";

const AT_ONCE = 200_000; // characters shown before a person asks for more
const LONGEST_DATA = 120; // characters of base64 shown among the JSON
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const SOUNDS = ["audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3", "audio/ogg", "audio/flac", "audio/aac", "audio/mp4", "audio/webm"];

/** `{ element, show, fail, clear }`: `show` takes a `ToolResult`, `fail` an error message, and whether the call was denied. */
export function resultView() {
  const verdict = make("p", { className: "verdict", role: "status" });
  const body = make("div");
  const element = make("section", { className: "result", hidden: true, "aria-label": "Result" }, verdict, body);
  let urls = [];

  function begin(words, state) {
    clear();
    element.hidden = false;
    element.dataset.state = state;
    setText(verdict, words);
  }

  function clear() {
    for (const url of urls) URL.revokeObjectURL(url);
    urls = [];
    body.replaceChildren();
    element.hidden = true;
  }

  function show(result, words) {
    begin(`${result.success ? "Completed" : "The tool reported an error"} ${words}`, result.success ? "ok" : "bad");
    const text = result.output || result.error || "";
    const data = result.data === null || result.data === undefined ? "" : JSON.stringify(result.data, null, 2);
    const isSaidTwice = data && isSame(text, result.data);
    const links = (data_, type) => {
      const url = URL.createObjectURL(new Blob([data_], { type }));
      urls.push(url);
      return url;
    };
    body.append(...[
      ...result.warnings.map((warning) => make("p", { className: "past" }, clean(warning))),
      text && !isSaidTwice && long(text, "Text"),
      data && long(data, "Structured content"),
      ...result.content.map((each) => shown(each, links)),
      result.content.length > 0 && rest(result.content),
      !text && !data && !result.content.length && make("p", { className: "dim" }, "The result is empty."),
    ].filter(Boolean));
    element.scrollIntoView({ block: "nearest" });
  }

  function fail(words, isDenied) {
    begin(clean(isDenied ? `Denied, and not sent. ${words}` : words), isDenied ? "denied" : "bad");
    element.scrollIntoView({ block: "nearest" });
  }

  return { element, show, fail, clear };
}

/** A text that may be huge, with buttons to expand and copy it. */
function long(text, label) {
  const whole = clean(text);
  const place = make("pre", { tabIndex: 0, "aria-label": label }, whole.slice(0, AT_ONCE));
  const more = whole.length > AT_ONCE && button(`Show all ${size(whole.length)}`, () => {
    place.textContent = whole;
    more.remove();
    place.focus();
  }, { className: "small" });
  const copy = navigator.clipboard && button("Copy", async () => {
    await navigator.clipboard.writeText(whole).then(() => say(`${label} copied`), (error) => say(`Copying failed: ${error.message}`));
  }, { className: "quiet small" });
  return make("div", { className: "part" }, make("p", { className: "acts" }, make("span", { className: "dim" }, label), more, copy), place);
}

/** A content block that is not text; null if the text already covers it. */
function shown(content, link) {
  const type = clean(content.mimeType).split(";")[0].trim().toLowerCase();
  if (content.type === "image" || content.type === "audio") return media(content, type, link);
  const inner = Object(content.type === "resource" ? content.resource : null);
  if (typeof inner.blob !== "string") return null;
  return saved(inner.blob, `resource of ${clean(inner.mimeType) || "unknown type"}`, link);
}

function media({ type: kind, data }, type, link) {
  const isKnown = (kind === "image" ? PICTURES : SOUNDS).includes(type);
  const bytes = isKnown ? decoded(data) : null;
  if (!bytes) return saved(data, `${kind} of ${type || "unknown type"}, not shown`, link);
  const words = `${kind}, ${type}, ${size(bytes.length)}`;
  const element = kind === "image"
    ? make("img", { src: link(bytes, type), alt: `Tool result: ${words}` })
    : make("audio", { src: link(bytes, type), controls: true, preload: "metadata" });
  const note = make("figcaption", { className: "dim" }, words);
  element.addEventListener("error", () => {
    element.remove();
    setText(note, `${words}: it cannot be shown, it may be broken`);
  });
  return make("figure", {}, element, note);
}

/** A download without a media type, so that the browser does not open it. */
function saved(data, words, link) {
  const bytes = decoded(data);
  if (!bytes) return make("p", { className: "past" }, clean(`${words}: its data is not base64`));
  const save = button("Save", () => {
    make("a", { href: link(bytes, "application/octet-stream"), download: "mcpd-result.bin" }).click();
  }, { className: "small" });
  return make("p", { className: "acts" }, make("span", {}, clean(`${words}, ${size(bytes.length)}`)), save);
}

function decoded(base64) {
  try {
    return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  } catch {
    return null;
  }
}

function rest(content) {
  const short = (_, value) => (typeof value === "string" && value.length > 4 * LONGEST_DATA ? `${value.slice(0, LONGEST_DATA)}… (${size(value.length)})` : value);
  return make("details", { className: "schema" }, make("summary", {}, "Raw content"), block(JSON.stringify(content, short, 2)));
}

/** Whether a text only repeats the structured content, as the MCP specification recommends for compatibility. */
function isSame(text, data) {
  if (text.length > AT_ONCE) return false;
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(JSON.parse(JSON.stringify(data)));
  } catch {
    return false;
  }
}
