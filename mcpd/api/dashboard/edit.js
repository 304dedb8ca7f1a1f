// Change or remove the chosen server: a form for common fields, or the whole definition as JSON.

import { say } from "./actions.js";
import { button, clean, complaint, make } from "./dom.js";
import { formFor } from "./form.js";
import { line } from "./state.js";

const text = { type: "string" }, texts = { type: "array", items: text }, number = { type: "number", description: "milliseconds" };
const COMMON = {
  description: text, enabled: { type: "boolean" }, timeout: number, connectTimeout: number, includeTools: texts, excludeTools: texts,
};
const LOCAL = { command: text, args: texts, env: { type: "object" }, cwd: text };
const REMOTE = { url: text, headers: { type: "object" } };
const LABEL = "Definition as JSON";

/** A dialog; `close` removes it. */
function dialog(title, ...children) {
  const element = make("dialog", { className: "editor", "aria-label": title }, make("h2", {}, title), ...children);
  const close = () => element.remove();
  element.addEventListener("close", close);
  document.body.append(element);
  element.showModal();
  return close;
}

/** The members that differ, as a JSON Merge Patch (RFC 7396). */
function changesOf(before, after) {
  const changes = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [old, now] = [before[name], after[name]];
    if (JSON.stringify(old) === JSON.stringify(now)) continue;
    changes[name] = isObject(old) && isObject(now) ? changesOf(old, now) : now ?? null;
  }
  return changes;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export async function edit(name) {
  let before;
  try {
    before = (await line.get("mcpd/server", { server: name })).definition;
  } catch (error) {
    say(`${name}: ${error.message}`);
    return;
  }
  const properties = { ...(before.url ? REMOTE : LOCAL), ...COMMON };
  const form = formFor({ type: "object", properties }, { label: LABEL, value: before });
  const wrong = make("div", { role: "status" });
  const element = make("form", { noValidate: true }, form.element, wrong, make("p", { className: "acts" },
    make("button", { type: "submit", className: "primary" }, "Save"), button("Cancel", () => close()), form.other,
    make("span", { className: "dim" }, "Values shown as *** are secret, and stay as they are unless you replace them.")));
  const close = dialog(`Edit ${clean(name)}`, element);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const read = form.read();
    if (read === null) return;
    wrong.replaceChildren();
    try {
      await line.get("mcpd/edit", { server: name, changes: changesOf(before, JSON.parse(read)) });
      close();
      say(`${name}: saved`);
    } catch (error) {
      wrong.replaceChildren(complaint([error.message, ...(error.data?.problems ?? []).map(({ fix }) => fix).filter(Boolean)].join("; ")));
    }
  });
}

export function remove(name) {
  const remove = button("Remove", async () => {
    close();
    try {
      await line.get("mcpd/remove", { server: name });
      say(`${name}: removed`);
    } catch (error) {
      say(`${name}: ${error.message}`);
    }
  }, { className: "primary" });
  const close = dialog(`Remove ${clean(name)}?`,
    make("p", {}, "mcpd stops the server and removes it from the configuration file. Stored logins and secrets stay."),
    make("p", { className: "acts" }, remove, button("Cancel", () => close())));
}
