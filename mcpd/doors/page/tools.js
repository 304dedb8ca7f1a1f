// The tools of the chosen server: their descriptions and schemas, and a form to try each.

import { byId, clean, make, took } from "./dom.js";
import { formFor } from "./form.js";
import { line, matches, now, servers, streams } from "./state.js";

const MOST_TOOLS = 400;

export async function showTools(changed) {
  const place = byId("panel-tools");
  const name = now.chosen, server = servers.get(name);
  if (now.tab !== "tools" || !server || (now.toolsOf === name && !changed)) return;
  now.toolsOf = name;
  const isThere = server.status === "connected" || server.tools > 0;
  if (!isThere) {
    now.toolsOf = "";
    const start = server.status === "idle" ? make("button", { type: "button", onclick: () => line.get("mcpd/reconnect", { server: name }) }, "Start it") : null;
    return place.replaceChildren(make("p", { className: "dim" }, `No list of tools: the server is ${server.status}. `, start));
  }
  try {
    const { tools, dropped } = await line.get("mcpd/tools", { server: name });
    if (name !== now.chosen) return;
    const open = new Set([...place.querySelectorAll("details[open][data-tool]")].map((each) => each.dataset.tool));
    const kept = new Map([...place.querySelectorAll("details[data-tool]")].map((each) => [each.dataset.key, each]));
    place.replaceChildren(
      make("p", { className: "dim", id: "no-tools", hidden: true }),
      ...tools.slice(0, MOST_TOOLS).map((tool, index) => {
        const key = JSON.stringify(tool);
        return kept.get(key) ?? toolItem(tool, `tool-${index}`, key, open.has(tool.name));
      }),
      tools.length > MOST_TOOLS ? make("p", { className: "dim" }, `${tools.length - MOST_TOOLS} more: mcpctl list-tools shows them all.`) : "",
      dropped ? make("p", { className: "dim" }, `${dropped} entries were no usable tools.`) : "");
    filterTools();
  } catch (error) {
    now.toolsOf = "";
    if (name === now.chosen) place.replaceChildren(make("p", { className: "trouble" }, clean(error.message)));
  }
}

export function filterTools() {
  const items = [...byId("panel-tools").querySelectorAll("details[data-tool]")];
  const inName = now.wanted && now.chosen && matches(now.chosen);
  let hidden = 0;
  for (const item of items) {
    item.hidden = Boolean(now.wanted && !inName && !matches(item.dataset.tool) && !matches(item.dataset.about));
    hidden += item.hidden ? 1 : 0;
  }
  const note = byId("no-tools");
  if (!note) return;
  note.hidden = items.length > hidden;
  note.textContent = items.length ? "No tool matches the filter." : "It offers no tools.";
}

function toolItem(tool, id, key, isOpen) {
  const about = typeof tool.description === "string" ? tool.description : "";
  const item = make("details", { "data-tool": tool.name, "data-about": about, "data-key": key },
    make("summary", {}, make("bdi", { className: "name" }, clean(tool.name)), " ", make("span", { className: "dim brief" }, clean(about.split("\n")[0]).slice(0, 200))));
  let built = false;
  const build = () => {
    if (built) return;
    built = true;
    item.append(toolBody(tool, about, id));
  };
  item.addEventListener("toggle", build);
  if (isOpen) {
    item.open = true;
    build();
  }
  return item;
}

function toolBody(tool, about, id) {
  const hints = Object(tool.annotations);
  const chips = [["readOnlyHint", "says it only reads"], ["destructiveHint", "says it may destroy"], ["openWorldHint", "reaches outside"]]
    .filter(([name]) => hints[name] === true).map(([, words]) => make("span", { className: "chip" }, words));
  const { element, read } = formFor(tool.inputSchema, id);
  const result = make("pre", { className: "result", hidden: true, tabIndex: 0, "aria-label": "Result", "aria-live": "polite" });
  const note = make("span", { className: "dim" });
  const send = make("button", { type: "submit", className: "primary" }, "Call");
  const stop = make("button", { type: "button", hidden: true }, "Cancel");
  const form = make("form", { noValidate: true }, element, make("p", { className: "acts" }, send, stop, note));
  const show = (text, isError) => {
    result.hidden = false;
    result.textContent = clean(text);
    result.classList.toggle("trouble", isError);
    result.scrollIntoView({ block: "nearest" });
  };
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    let text;
    try {
      text = read();
    } catch (error) {
      show(error.message, true);
      return;
    }
    await call(tool, text, { send, stop, note, show });
  });
  const schemas = make("details", { className: "schema" }, make("summary", {}, "Schema"),
    make("pre", { tabIndex: 0 }, clean(JSON.stringify(tool.inputSchema, null, 2))),
    ...(tool.outputSchema ? [make("h4", {}, "Output"), make("pre", { tabIndex: 0 }, clean(JSON.stringify(tool.outputSchema, null, 2)))] : []));
  return make("div", { className: "body" }, make("p", { className: "long" }, clean(about)), make("p", {}, ...chips), schemas, form, result);
}

async function call(tool, text, { send, stop, note, show }) {
  const began = performance.now();
  const token = `page-${began}`;
  const params = `{"server":${JSON.stringify(tool.server)},"tool":${JSON.stringify(tool.name)},"arguments":${text},"_meta":{"progressToken":${JSON.stringify(token)}}}`;
  streams.set(token, (told) => {
    note.textContent = clean(`${told.progress}${told.total ? ` of ${told.total}` : ""} ${told.message ?? ""}`);
  });
  const { id, answer } = line.ask("mcpd/call", null, params);
  send.disabled = true;
  stop.hidden = false;
  stop.onclick = () => line.cancel(id);
  note.textContent = "running";
  try {
    const result = await answer;
    const parts = [result.output, result.error && result.error !== result.output ? result.error : "", ...result.warnings.map((each) => `warning: ${each}`)];
    if (result.data !== null && result.data !== undefined) parts.push(JSON.stringify(result.data, null, 2));
    const others = result.content.filter((each) => each.type !== "text");
    if (others.length) parts.push(JSON.stringify(others, null, 2));
    show(parts.filter(Boolean).join("\n") || "(nothing)", !result.success);
  } catch (error) {
    const problems = (error.data?.problems ?? []).map((each) => `  ${each.path}: ${each.message}`);
    show([error.message, ...problems].join("\n"), true);
  } finally {
    streams.delete(token);
    send.disabled = false;
    stop.hidden = true;
    note.textContent = took(performance.now() - began);
  }
}
