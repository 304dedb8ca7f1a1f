// The pages of the dashboard: the servers, the clients, the calls, and the events of all servers.

import { leaveCalls, showCalls } from "./calls.js";
import { showClients } from "./clients.js";
import { byId } from "./dom.js";
import { goTo, goToPage } from "./route.js";
import { now } from "./state.js";

export const PAGES = ["servers", "clients", "calls", "events"];

export function showPage(name) {
  now.page = name;
  document.body.dataset.page = name;
  for (const each of PAGES) {
    byId(`page-${each}`).setAttribute("aria-current", each === name ? "page" : "false");
    if (each !== "servers") byId(`${each}-page`).hidden = each !== name;
  }
  if (name === "clients") showClients();
  if (name === "calls") showCalls();
  else leaveCalls();
  if (name === "events") byId("all-events").scrollTop = byId("all-events").scrollHeight;
}

/** Show a page and add a history entry. */
export function turnToPage(name) {
  if (name === "servers") goTo([now.chosen, now.chosen && now.tab], true);
  else goToPage(name);
  showPage(name);
}
