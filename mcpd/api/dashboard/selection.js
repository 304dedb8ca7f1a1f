// Which server is selected: by click, key or address.

import { byId, setText } from "./dom.js";
import { drawHead } from "./server_header.js";
import { drawList, rowOf, shown } from "./list.js";
import { forgetLog } from "./log.js";
import { goTo, route } from "./route.js";
import { leaveMessages } from "./messages.js";
import { PAGES, showPage } from "./pages.js";
import { chosen, needsAttention, now, servers } from "./state.js";
import { TABS, showTab } from "./tabs.js";
import { leaveTools, showTools } from "./tools.js";

let drawing = 0;

/** Bring the screen up to date, at most once a frame. */
export function draw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    const troubled = [...servers.values()].filter(needsAttention).length;
    if (!troubled) now.onlyTrouble = false;
    byId("attention").hidden = !troubled;
    byId("attention").setAttribute("aria-pressed", String(now.onlyTrouble));
    setText(byId("attention"), `${troubled} need${troubled === 1 ? "s" : ""} attention`);
    drawList(choose);
    drawHead();
    const up = [...servers.values()].filter((server) => server.status === "connected").length;
    byId("totals").textContent = servers.size ? `${up} of ${servers.size} connected` : "";
    document.title = servers.size ? `${up}/${servers.size} · mcpd` : "mcpd";
    const isHere = now.page === "servers";
    byId("list").hidden = !isHere;
    byId("welcome").hidden = servers.size > 0 || !isHere;
    byId("detail").hidden = !chosen() || !isHere;
  });
}

function show(name, tab, wanted) {
  if (name !== now.chosen) {
    leaveTools();
    forgetLog();
    leaveMessages();
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

/** Show the page and server of the address; otherwise keep the selection, or select the first server. */
export function follow() {
  const { server, tab, tool, page } = route() ?? {};
  showPage(PAGES.includes(page) ? page : "servers");
  const isThere = servers.has(server);
  if (server && !isThere) goTo([]);
  document.body.classList.toggle("looking", isThere);
  const name = isThere ? server : servers.has(now.chosen) ? now.chosen : shown()[0]?.name ?? null;
  show(name, TABS.includes(tab) ? tab : now.tab, tool);
}
