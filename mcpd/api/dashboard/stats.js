// Call statistics, polled while the page is visible.

import { figures, line } from "./state.js";

const POINTS = 60, EVERY = 2000; // two minutes
let timer = 0, asking = false;

/** Poll until the connection ends; call `fresh` after each response. */
export async function follow(fresh) {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  try {
    if (!document.hidden) {
      take(await line.get("mcpd/stats"));
      fresh();
    }
    timer = setTimeout(follow, EVERY, fresh);
  } catch {
    // The connection is lost; the code that reopens it calls this function again.
  } finally {
    asking = false;
  }
}

function take(stats) {
  for (const name of figures.keys()) {
    if (!stats.servers.some((each) => each.server === name)) figures.delete(name);
  }
  for (const { server, counts, seconds } of stats.servers) {
    const answered = counts.calls - counts.lost - counts.cancelled;
    const before = figures.get(server) ?? { points: new Array(POINTS).fill(null), answered, seconds };
    const more = answered - before.answered;
    const point = more > 0 ? ((seconds - before.seconds) / more) * 1000 : null;
    figures.set(server, { counts, answered, seconds, points: [...before.points.slice(1), point] });
  }
}
