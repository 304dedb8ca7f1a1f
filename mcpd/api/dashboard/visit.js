// Being let in: the code of an address becomes a visit, which ends when the person leaves.

const KEY = "mcpd-page-key";

/** What the browser keeps for this port alone; the cookie goes to every port of the machine. */
export const key = () => localStorage.getItem(KEY) ?? "";

async function session(method, key, body) {
  const headers = { "X-Mcpd-Page": key };
  if (body) headers["Content-Type"] = "application/json";
  return fetch("/page/session", { method, headers, body, credentials: "same-origin" });
}

/** Use the code in the address, if there is one. Returns why it was refused, or nothing. */
export async function enter() {
  const code = location.hash.slice(1);
  if (!code || code.startsWith("/")) return ""; // none, or a place on the page
  history.replaceState(null, "", location.pathname); // neither the history nor a bookmark is to keep it
  const answer = await session("POST", "1", JSON.stringify({ code }));
  if (!answer.ok) return (await answer.text()).trim();
  localStorage.setItem(KEY, (await answer.json()).key);
  return "";
}

/** `true` let in, `false` not, `null` nobody answers. */
export async function isLetIn() {
  if (!key()) return false;
  try {
    const answer = await session("GET", key());
    return answer.status === 401 || answer.status === 403 ? false : answer.ok || null;
  } catch {
    return null;
  }
}

export async function leave() {
  const ours = key();
  localStorage.removeItem(KEY);
  if (ours) await session("DELETE", ours).catch(() => null);
}
