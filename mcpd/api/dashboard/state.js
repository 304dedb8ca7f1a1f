// State shared by all modules of the page.

import { Line } from "./daemon_connection.js";

export const servers = new Map(); // name → its status
export const figures = new Map(); // name → its use and latency, as `stats.js` keeps them
export const streams = new Map(); // request id or progress token → what to do with what is told of it
export const line = new Line();

export const now = {
  chosen: null, // the server's name
  tab: "tools",
  wanted: "", // the filter, in lower case
};

export const chosen = () => servers.get(now.chosen);
export const matches = (text) => text.toLowerCase().includes(now.wanted);
