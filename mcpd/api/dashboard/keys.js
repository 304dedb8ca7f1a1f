// Single-key shortcuts, inactive while typing; they can be switched off (WCAG 2.1.4).

import { byId } from "./dom.js";

const OFF = "mcpd-page-no-keys";
const TYPED_IN = "input:not([type=checkbox]), textarea, select, [contenteditable]";

/** `acts`: key → action. */
export function listen(acts) {
  const help = byId("help"), box = byId("single-keys");
  box.checked = localStorage.getItem(OFF) === null;
  box.addEventListener("change", () => (box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1")));
  byId("keys").addEventListener("click", () => help.showModal());

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || byId("main").hidden) return;
    if (event.target.closest(TYPED_IN)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = event.key === "?" ? () => help.showModal() : acts[event.key];
    if (!act || !box.checked) return;
    event.preventDefault();
    act();
  });
}
