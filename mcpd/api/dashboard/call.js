// One tool call from its form: send, show progress, cancel, show the result.

import { button, clean, make, setText } from "./dom.js";
import { formFor } from "./form.js";
import { resultView } from "./result.js";
import { line, streams } from "./state.js";
import { took } from "./units.js";

let calls = 0;

/** The form of a tool, with the result of the last call below it. */
export function tryOut(tool) {
  const form = formFor(tool.inputSchema);
  const result = resultView();
  const send = make("button", { type: "submit", className: "primary", title: "Ctrl-Enter" }, "Call");
  const stop = button("Cancel", () => {}, { hidden: true });
  const bar = make("progress", { hidden: true, "aria-label": "Progress of the call" });
  const note = make("span", { className: "dim" });
  const element = make("form", { noValidate: true }, form.element, make("p", { className: "acts" }, send, stop, form.other, bar, note), result.element);

  function tell({ progress, total, message }) {
    bar.hidden = false;
    const isMeasured = typeof progress === "number" && progress >= 0 && typeof total === "number" && total > 0;
    if (isMeasured) Object.assign(bar, { max: total, value: Math.min(progress, total) });
    setText(note, [clean(progress), total !== undefined && `of ${clean(total)}`, clean(message)].filter(Boolean).join(" "));
  }

  async function call() {
    const args = send.disabled ? null : form.read();
    if (args === null) return;
    const began = performance.now(), token = `page-${++calls}`;
    const after = () => `after ${took(performance.now() - began)}`;
    const { id, answer } = line.ask("mcpd/call", null, paramsOf(tool, args, token));
    const watch = setInterval(() => bar.hidden && setText(note, `running for ${Math.round((performance.now() - began) / 1000)} s`), 1000);
    streams.set(token, tell);
    result.clear();
    send.disabled = true;
    stop.hidden = false;
    stop.onclick = () => line.cancel(id);
    setText(note, "running");
    try {
      result.show(await answer, after());
    } catch (error) {
      const problems = error.data?.problems ?? [];
      const isMarked = problems.length > 0 && form.complain(problems);
      result.fail(isMarked ? "The tool was not called: the marked fields do not match its schema." : `${error.message} (${after()})`, error.data?.code === "denied");
    } finally {
      clearInterval(watch);
      streams.delete(token);
      const hadFocus = document.activeElement === stop;
      send.disabled = false;
      stop.hidden = bar.hidden = true;
      bar.removeAttribute("value");
      setText(note, "");
      if (hadFocus) send.focus();
    }
  }

  element.addEventListener("submit", (event) => {
    event.preventDefault();
    call();
  });
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) element.requestSubmit();
  });
  return element;
}

/** As JSON text, so that numbers are sent exactly as typed. */
function paramsOf(tool, args, token) {
  const [server, name, key] = [tool.server, tool.name, token].map((each) => JSON.stringify(each));
  return `{"server":${server},"tool":${name},"arguments":${args},"_meta":{"progressToken":${key}}}`;
}
