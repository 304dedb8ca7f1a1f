// The Resources and Prompts tabs of the chosen server: what it offers besides tools, and forms to read it.

import { button, byId, clean, complaint, make, withCode } from "./dom.js";
import { resultView } from "./result.js";
import { chosen, line, now } from "./state.js";
import { took } from "./units.js";

export const showResources = () => show("resources", "mcpd/resources", ({ resources, resource_templates: templates }) =>
  [...resources.map((each) => resource(each, each.uri)), ...templates.map((each) => resource(each, each.uriTemplate, true))]);

export const showPrompts = () => show("prompts", "mcpd/prompts", ({ prompts }) => prompts.map(prompt));

/** Fill a tab with what a method lists. Entries that were open stay so. */
async function show(tab, method, itemsOf) {
  const place = byId(`panel-${tab}`), server = chosen();
  if (now.tab !== tab || !server) return;
  if (place.dataset.server !== server.name) place.replaceChildren();
  place.dataset.server = server.name;
  if (server.status !== "connected" && !server[tab]) {
    place.replaceChildren(make("p", { className: "empty" }, `The ${tab} are listed once the server is connected.`));
    return;
  }
  try {
    const answer = await line.get(method, { server: server.name });
    if (server.name !== now.chosen || now.tab !== tab) return;
    const known = new Map([...place.querySelectorAll("details[data-key]")].map((each) => [each.dataset.key, each]));
    const items = itemsOf(answer).map(({ key, make: build }) => known.get(key) ?? build());
    place.replaceChildren(items.length ? make("div", { className: "sheet" }, ...items)
      : make("p", { className: "empty" }, `This server provides no ${tab}.`));
  } catch (error) {
    if (server.name === now.chosen) place.replaceChildren(complaint(error.message));
  }
}

/** One entry of a list, whose body is made when it is opened. */
function item(entry, name, brief, body) {
  const key = JSON.stringify(entry);
  return { key, make: () => {
    const element = make("details", { "data-key": key },
      make("summary", {}, make("bdi", { className: "name" }, clean(name)), " ", make("span", { className: "dim brief" }, clean(brief))));
    element.addEventListener("toggle", () => element.childElementCount === 1 && element.append(body()));
    return element;
  } };
}

function resource(entry, uri, isTemplate = false) {
  const about = [entry.title || entry.name, entry.description].filter((each) => typeof each === "string" && each).join(" — ");
  return item(entry, uri, about, () => {
    const field = make("input", { value: String(uri ?? ""), spellcheck: false, autocomplete: "off", className: "code" });
    const asked = isTemplate && make("label", { className: "field" }, "URI", field);
    return form("Read", [
      about && make("p", { className: "long" }, ...withCode(about)),
      make("p", { className: "dim" }, [isTemplate && "template", entry.mimeType && clean(entry.mimeType)].filter(Boolean).join(", ")),
      asked,
    ], async () => {
      const { contents } = await line.get("mcpd/read", { server: entry.server, uri: isTemplate ? field.value : entry.uri });
      return { output: contents.map((each) => each.text).filter((text) => typeof text === "string").join("\n"),
        content: contents.filter((each) => typeof each.blob === "string").map((each) => ({ type: "resource", resource: each })) };
    });
  });
}

function prompt(entry) {
  const wanted = Array.isArray(entry.arguments) ? entry.arguments : [];
  return item(entry, entry.name, entry.description ?? entry.title ?? "", () => {
    const fields = wanted.map((each) => [each, make("input", { name: String(each.name), required: each.required === true, autocomplete: "off" })]);
    return form("Get", [
      entry.description && make("p", { className: "long" }, ...withCode(entry.description)),
      ...fields.map(([each, field]) => make("label", { className: "field" }, make("bdi", {}, clean(each.name)),
        make("span", { className: "dim" }, each.required === true ? " required" : "", each.description ? ` ${clean(each.description)}` : ""), field)),
    ], async () => {
      const args = Object.fromEntries(fields.filter(([, field]) => field.value).map(([each, field]) => [each.name, field.value]));
      const { messages } = await line.get("mcpd/prompt", { server: entry.server, prompt: entry.name, arguments: args });
      return { output: messages.map(({ role, content }) => `${role}: ${content?.type === "text" ? content.text : `[${content?.type}]`}`).join("\n\n"),
        content: messages.map(({ content }) => content).filter((each) => each && each.type !== "text") };
    });
  });
}

/** A form whose answer is shown below it. `ask` returns what `resultView` shows of a tool's result. */
function form(verb, parts, ask) {
  const result = resultView();
  const send = button(verb, () => {}, { type: "submit", className: "primary" });
  const element = make("form", { className: "body" }, ...parts, make("p", { className: "acts" }, send), result.element);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const began = performance.now();
    const after = () => `after ${took(performance.now() - began)}`;
    send.disabled = true;
    result.clear();
    try {
      result.show({ success: true, error: "", data: null, warnings: [], ...(await ask()) }, after());
    } catch (error) {
      result.fail(`${error.message} (${after()})`, error.data?.code === "denied");
    } finally {
      send.disabled = false;
    }
  });
  return element;
}
