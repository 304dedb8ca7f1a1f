// Which server is selected: by click, key or address.

import { byId } from "./dom.js";
import { drawHead } from "./server_header.js";
import { drawList, rowOf, shown } from "./list.js";
import { forgetLog } from "./log.js";
import { goTo, route } from "./route.js";
import { chosen, now, servers } from "./state.js";
import { TABS, showTab } from "./tabs.js";
import { leaveTools, showTools } from "./tools.js";

let drawing = 0;

/** Bring the screen up to date, at most once a frame. */
export function draw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    drawList(choose);
    drawHead();
    const up = [...servers.values()].filter((server) => server.status === "connected").length;
    byId("totals").textContent = servers.size ? `${up} of ${servers.size} connected` : "";
    document.title = servers.size ? `${up}/${servers.size} · mcpd` : "mcpd";
    byId("welcome").hidden = servers.size > 0;
    byId("detail").hidden = !chosen();
  });
}

function show(name, tab, wanted) {
  if (name !== now.chosen) {
    leaveTools();
    forgetLog();
  }
  now.chosen = name;
  showTab(tab, { wanted });
  draw();
}

/** Select a server and add a history entry. On a narrow screen this switches from the list to the detail view. */
export function choose(name) {
  const wasLooking = document.body.classList.contains("looking");
  document.body.classList.add("looking");
  goTo([name, now.tab], true);
  if (name !== now.chosen) show(name, now.tab);
  if (!wasLooking && byId("back").checkVisibility()) byId("detail").focus();
}

export function leaveDetail() {
  document.body.classList.remove("looking");
  goTo([], true);
  rowOf(now.chosen)?.pick.focus();
}

/** Select the next server (`by` 1) or the previous one (-1). */
export function move(by) {
  const names = shown().map((server) => server.name);
  const next = names[Math.min(names.length - 1, Math.max(0, names.indexOf(now.chosen) + by))];
  if (next === undefined || next === now.chosen) return;
  const wasInList = byId("servers").contains(document.activeElement);
  goTo([next, now.tab]);
  show(next, now.tab);
  const row = rowOf(next);
  row?.item.scrollIntoView({ block: "nearest" });
  if (wasInList) row?.pick.focus();
}

/** After a reconnect: keep the selection if that server still exists. */
export function refresh() {
  if (!servers.has(now.chosen)) follow();
  else if (now.tab === "tools") showTools({ changed: true });
  else showTab(now.tab);
}

/** Select the server of the address; otherwise keep the selection, or select the first server. */
export function follow() {
  const { server, tab, tool } = route() ?? {};
  const isThere = servers.has(server);
  if (server && !isThere) goTo([]);
  document.body.classList.toggle("looking", isThere);
  const name = isThere ? server : servers.has(now.chosen) ? now.chosen : servers.keys().next().value ?? null;
  show(name, TABS.includes(tab) ? tab : now.tab, tool);
}
