// Login: exchange the code in the address for a session, which ends at logout.

const KEY = "mcpd-page-key";

/** The half of the login that the browser stores for this port only; cookies are sent to all ports of a host. */
export const key = () => localStorage.getItem(KEY) ?? "";

async function session(method, key, body) {
  const headers = { "X-Mcpd-Page": key };
  if (body) headers["Content-Type"] = "application/json";
  return fetch("/page/session", { method, headers, body, credentials: "same-origin" });
}

/** Redeem the code in the address, if there is one. Returns the error message, or "". */
export async function login() {
  const code = location.hash.slice(1);
  if (!code || code.startsWith("/")) return ""; // no code, or a route
  history.replaceState(null, "", location.pathname); // keep the code out of history and bookmarks
  const answer = await session("POST", "1", JSON.stringify({ code }));
  if (!answer.ok) return (await answer.text()).trim();
  localStorage.setItem(KEY, (await answer.json()).key);
  return "";
}

/** `true`: logged in, `false`: not, `null`: no response. */
export async function isLoggedIn() {
  if (!key()) return false;
  try {
    const answer = await session("GET", key());
    return answer.status === 401 || answer.status === 403 ? false : answer.ok || null;
  } catch {
    return null;
  }
}

export async function logout() {
  const ours = key();
  localStorage.removeItem(KEY);
  if (ours) await session("DELETE", ours).catch(() => null);
}
