// The tabs of a server.

import { byId } from "./dom.js";
import { showServerEvents } from "./events.js";
import { showEvidence } from "./evidence.js";
import { showLog } from "./log.js";
import { leaveMessages, showMessages } from "./messages.js";
import { showPrompts, showResources } from "./resources.js";
import { goTo } from "./route.js";
import { now } from "./state.js";
import { showTools } from "./tools.js";

const SHOW = {
  tools: showTools, resources: showResources, prompts: showPrompts, log: showLog, events: showServerEvents,
  messages: showMessages, evidence: showEvidence,
};
export const TABS = Object.keys(SHOW);
const STEPS = { ArrowRight: (at) => at + 1, ArrowLeft: (at) => at - 1 + TABS.length, Home: () => 0, End: () => TABS.length - 1 };

/** Show one tab. `wanted`: the tool to open. */
export function showTab(name, { focus = false, wanted = "" } = {}) {
  now.tab = name;
  for (const each of TABS) {
    const tab = byId(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    byId(`panel-${each}`).hidden = each !== name;
    if (focus && each === name) tab.focus();
  }
  if (name !== "messages") leaveMessages(); // a tap costs the daemon time
  if (now.chosen) SHOW[name]({ wanted });
}

/** Show a tab and update the address. */
export function turnTo(name, focus = false) {
  showTab(name, { focus });
  if (now.chosen) goTo([now.chosen, name]);
}

for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => turnTo(name));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (!step) return;
  event.preventDefault();
  turnTo(TABS[step(TABS.indexOf(now.tab)) % TABS.length], true);
});
