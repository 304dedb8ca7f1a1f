// State shared by all modules of the page.

import { Line } from "./daemon_connection.js";

export const servers = new Map(); // name → its status
export const figures = new Map(); // name → its use and latency, as `stats.js` keeps them
export const streams = new Map(); // request id or progress token → the function that handles its notifications
export const line = new Line();

export const now = {
  chosen: null, // the server's name
  tab: "tools",
  page: "servers",
  wanted: "", // the filter, in lower case
  onlyTrouble: false, // whether only servers that need attention are listed
};

export const chosen = () => servers.get(now.chosen);

/** Whether a person should look at it: it has failed, wants a login, or keeps failing while it is retried. */
export const needsAttention = ({ status, attempts }) =>
  status === "failed" || status === "needs-auth" || (status === "pending" && attempts > 0);

export const matches = (text) => text.toLowerCase().includes(now.wanted);
