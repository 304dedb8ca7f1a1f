// What a person wishes of a server, and what is said about it.

import { byId, clean } from "./dom.js";
import { line, servers } from "./state.js";

const SHOWN = 6000;
let timer = 0;

/** For a few seconds on the screen, and once by a reader of it. */
export function say(words) {
  const place = byId("said");
  place.textContent = clean(words);
  place.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => place.classList.remove("shown"), SHOWN);
}

async function wish(method, name, words) {
  say(`${name}: ${words}`);
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
  if (isOn(servers.get(name))) await wish("mcpd/reconnect", name, "connecting");
  else say(`${name} is disabled: enable it first`);
}

export async function toggle(name) {
  if (!servers.has(name)) return;
  if (isOn(servers.get(name))) await wish("mcpd/disable", name, "disabling");
  else await wish("mcpd/enable", name, "enabling");
}
