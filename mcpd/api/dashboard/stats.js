// Call statistics, polled while the page is visible.

import { figures, line } from "./state.js";

const POINTS = 60, EVERY = 2000; // two minutes
const MEASURED = 5; // memory and CPU are measured with every fifth response, because that takes mcpd longer
let timer = 0, asking = false, asked = 0;

/** Poll until the connection ends; call `fresh` after each response. */
export async function follow(fresh) {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  try {
    if (!document.hidden) {
      take(await line.get("mcpd/stats", { processes: asked++ % MEASURED === 0 }));
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
  for (const { server, counts, seconds, cost, cpu_seconds: spent, clients } of stats.servers) {
    const answered = counts.calls - counts.lost - counts.cancelled;
    const before = figures.get(server) ?? { points: new Array(POINTS).fill(null), answered, seconds };
    const more = answered - before.answered;
    const point = more > 0 ? ((seconds - before.seconds) / more) * 1000 : null;
    const now = { counts, answered, seconds, clients: clients.length, points: [...before.points.slice(1), point] };
    figures.set(server, { ...now, ...usage(before, cost, spent, Date.parse(stats.at)) });
  }
}

/** Memory, and the share of one processor since the last measurement; null if that is not known yet. */
function usage(before, cost, spent, at) {
  if (!cost) return { cost: before.cost, cpu: before.cpu ?? null, spent: before.spent, measured: before.measured };
  const cpu = before.measured ? Math.max(0, (spent - before.spent) / ((at - before.measured) / 1000)) * 100 : null;
  return { cost, cpu, spent, measured: at };
}
