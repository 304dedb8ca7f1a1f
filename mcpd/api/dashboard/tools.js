// The tools of the chosen server: their descriptions and schemas, and a form to try each.

import { reconnect } from "./actions.js";
import { tryOut } from "./call.js";
import { block, button, byId, clean, complaint, make, setText } from "./dom.js";
import { goTo } from "./route.js";
import { chosen, line, matches, now } from "./state.js";

const MOST = 400, LONGEST_BRIEF = 200;

/** What a tool's annotations say that a person should know before a call: `[word, explanation]`, or nothing. */
export function warning({ readOnlyHint, destructiveHint }) {
  if (readOnlyHint === true) return null;
  if (destructiveHint === true) return ["destroys", "The server declares that this tool may overwrite or delete data"];
  if (readOnlyHint === false || destructiveHint === false) return ["writes", "The server declares that this tool changes something"];
  return null; // not declared
}

const sheets = new Map(); // server → its tools, with what was typed in
let shownOf = ""; // whose are on the screen

/** Called when another server is selected. */
export function leaveTools() {
  shownOf = "";
  byId("panel-tools").replaceChildren();
}

/** Called when a server was removed. */
export const forgetTools = (name) => sheets.delete(name);

/** Show the tools and open `wanted`. `changed`: what is shown may be out of date. */
export async function showTools({ changed = false, wanted = "" } = {}) {
  const place = byId("panel-tools"), server = chosen();
  if (changed) shownOf = "";
  if (now.tab !== "tools" || !server) return;
  if (shownOf === server.name) {
    open(place, wanted);
    return;
  }
  if (server.status !== "connected" && !server.tools) {
    shownOf = "";
    place.replaceChildren(noTools(server));
    return;
  }
  shownOf = server.name;
  try {
    const answer = await line.get("mcpd/tools", { server: server.name });
    if (server.name !== now.chosen) return;
    fill(place, server.name, answer);
    filterTools();
    open(place, wanted);
  } catch (error) {
    shownOf = "";
    if (server.name === now.chosen) place.replaceChildren(complaint(error.message));
  }
}

/** Try again if nothing could be shown before. */
export const showToolsIfNone = () => shownOf || showTools();

function noTools({ name, status }) {
  const start = status === "idle" && button("Start", () => reconnect(name));
  const words = status === "pending" ? "Tools are listed once the server is connected." : "Tools are unknown: the server has not been connected yet.";
  return make("p", { className: "empty" }, words, start && " ", start);
}

function fill(place, server, { tools, dropped }) {
  const sheet = sheets.get(server) ?? make("div", { className: "sheet" });
  sheets.set(server, sheet);
  const before = [...sheet.children];
  const known = new Map(before.map((each) => [each.dataset.key, each]));
  const isOpen = new Set(before.filter((each) => each.open).map((each) => each.dataset.tool));
  sheet.replaceChildren(...tools.slice(0, MOST).map((tool) => {
    const key = JSON.stringify(tool);
    return known.get(key) ?? item(tool, key, isOpen.has(tool.name));
  }));
  const notes = [
    tools.length > MOST && `${tools.length - MOST} more: mcpctl list-tools shows them all.`,
    dropped > 0 && `${dropped} of its list could not be used as tools.`,
  ].filter(Boolean);
  place.replaceChildren(make("p", { className: "empty", id: "no-tools", hidden: true }), sheet, ...notes.map((words) => make("p", { className: "dim" }, words)));
}

export function filterTools() {
  const items = [...byId("panel-tools").querySelectorAll("details[data-tool]")];
  const inName = now.wanted && now.chosen && matches(now.chosen);
  for (const item of items) {
    item.hidden = Boolean(now.wanted && !inName && !matches(item.dataset.tool) && !matches(item.dataset.about));
  }
  const note = byId("no-tools");
  if (!note) return;
  note.hidden = items.some((item) => !item.hidden);
  setText(note, items.length ? "No tool matches the filter." : "This server provides no tools.");
}

function open(place, wanted) {
  const item = wanted && [...place.querySelectorAll("details[data-tool]")].find((each) => each.dataset.tool === wanted);
  if (!item) return;
  item.open = true;
  item.scrollIntoView({ block: "nearest" });
}

function item(tool, key, isOpen) {
  const about = typeof tool.description === "string" ? tool.description : "";
  const title = [tool.title, tool.annotations?.title].find((each) => typeof each === "string" && each && each !== tool.name);
  const warned = warning(Object(tool.annotations));
  const tags = Array.isArray(tool.tags) ? tool.tags.map(String) : [];
  const brief = [title, about.trim().split("\n")[0]].filter(Boolean).join(" — ");
  const element = make("details", { "data-tool": tool.name, "data-about": `${about} ${warned?.[0] ?? ""} ${tags.join(" ")}`, "data-key": key },
    make("summary", {}, make("bdi", { className: "name" }, clean(tool.name)), " ",
      make("span", { className: "dim brief" }, clean(brief).slice(0, LONGEST_BRIEF)),
      warned && make("span", { className: `chip ${warned[0]}`, title: warned[1] }, warned[0]),
      ...tags.map((tag) => make("span", { className: "chip", title: "A tag in the definition of the server" }, clean(tag)))));
  element.addEventListener("toggle", () => element.childElementCount === 1 && element.append(body(tool, about)));
  element.firstElementChild.addEventListener("click", () => goTo([tool.server, "tools", element.open ? "" : tool.name]));
  element.open = isOpen;
  return element;
}

function body(tool, about) {
  const schema = (title, value) => value && [make("h4", {}, title), block(JSON.stringify(value, null, 2), { "aria-label": title })];
  return make("div", { className: "body" },
    about && make("p", { className: "long", tabIndex: 0 }, clean(about)),
    make("details", { className: "schema" }, make("summary", {}, "Schema"),
      ...[schema("Input", tool.inputSchema), schema("Output", tool.outputSchema), schema("Annotations", tool.annotations)].filter(Boolean).flat()),
    tryOut(tool));
}
