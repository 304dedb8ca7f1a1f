// Actions on a server (reconnect, enable, disable), and the status message that reports them.

import { byId, plain } from "./dom.js";
import { line, servers } from "./state.js";

const SHOWN = 6000;
let timer = 0;

/** Show a message for a few seconds; screen readers announce it once. */
export function say(message) {
  const place = byId("said");
  place.textContent = plain(message);
  place.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => place.classList.remove("shown"), SHOWN);
}

async function act(method, name, progress) {
  say(`${name}: ${progress}`);
  try {
    const { server } = await line.get(method, { server: name, wait: 10 });
    say(`${name}: ${server.status}${server.reason ? `, ${server.reason}` : ""}`);
  } catch (error) {
    say(`${name}: ${error.message}`);
  }
}

export const isOn = (server) => server?.status !== "disabled";

export async function reconnect(name) {
  if (!servers.has(name)) return;
  if (isOn(servers.get(name))) await act("mcpd/reconnect", name, "connecting");
  else say(`${name} is disabled. Enable it first.`);
}

export async function toggle(name) {
  if (!servers.has(name)) return;
  if (isOn(servers.get(name))) await act("mcpd/disable", name, "disabling");
  else await act("mcpd/enable", name, "enabling");
}
