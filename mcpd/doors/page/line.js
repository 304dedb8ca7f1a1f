// The line to the daemon: JSON-RPC over a WebSocket, opened again when it breaks.

const KEY = "mcpd-page-key";

async function session(method, key, body) {
  const headers = { "X-Mcpd-Page": key };
  if (body) headers["Content-Type"] = "application/json";
  return fetch("/page/session", { method, headers, body, credentials: "same-origin" });
}

/** Use the code in the address, if there is one. Returns why it was refused, or nothing. */
export async function enter() {
  const code = location.hash.slice(1);
  if (!code) return "";
  history.replaceState(null, "", location.pathname); // neither the history nor a bookmark is to keep it
  const answer = await session("POST", "1", JSON.stringify({ code }));
  if (!answer.ok) return (await answer.text()).trim();
  localStorage.setItem(KEY, (await answer.json()).key);
  return "";
}

/** `true` let in, `false` not, `null` nobody answers. */
export async function isLetIn() {
  const key = localStorage.getItem(KEY);
  if (!key) return false;
  try {
    const answer = await session("GET", key);
    return answer.status === 401 || answer.status === 403 ? false : answer.ok || null;
  } catch {
    return null;
  }
}

export async function leave() {
  const key = localStorage.getItem(KEY);
  localStorage.removeItem(KEY);
  if (key) await session("DELETE", key).catch(() => null);
}

/** An error that the daemon answered with. */
export class Refused extends Error {
  constructor(error) {
    super(error.message);
    this.data = error.data ?? {};
  }
}

export class Line {
  #socket = null;
  #asked = new Map();
  #last = 0;

  // To be set before it is opened: how it is, and notifications.
  opened = () => {};
  closed = () => {};
  told = (_method, _params) => {};

  open() {
    this.close();
    const key = localStorage.getItem(KEY) ?? "";
    const socket = new WebSocket(`ws://${location.host}/page/socket`, ["mcpd.page", `key.${key}`]);
    this.#socket = socket;
    socket.onopen = () => this.opened();
    socket.onmessage = (event) => this.#take(event.data);
    socket.onclose = () => {
      if (this.#socket !== socket) return;
      this.close();
      this.closed();
    };
  }

  close() {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    const asked = [...this.#asked.values()];
    this.#asked.clear();
    for (const { reject } of asked) reject(new Error("the line to mcpd broke; whether it was done is not known"));
  }

  /** Ask, and get `{ id, answer }`; the answer is a promise of the result. `raw`: params as JSON text. */
  ask(method, params = {}, raw = null) {
    const id = ++this.#last;
    const answer = new Promise((resolve, reject) => {
      if (this.#socket?.readyState !== WebSocket.OPEN) return reject(new Error("there is no line to mcpd now"));
      this.#asked.set(id, { resolve, reject });
      const text = raw ?? JSON.stringify(params);
      this.#socket.send(`{"jsonrpc":"2.0","id":${id},"method":${JSON.stringify(method)},"params":${text}}`);
      return undefined;
    });
    return { id, answer };
  }

  /** The result; for what is answered once. */
  async get(method, params = {}) {
    return this.ask(method, params).answer;
  }

  /** Its answer, if any is still to come, is an error; a stream ends. */
  cancel(id) {
    if (this.#socket?.readyState === WebSocket.OPEN) {
      this.#socket.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":${id}}}`);
    }
    const asked = this.#asked.get(id);
    this.#asked.delete(id);
    asked?.reject(new Error("cancelled"));
  }

  #take(text) {
    const message = JSON.parse(text);
    if (message.method) return this.told(message.method, message.params ?? {});
    const asked = this.#asked.get(message.id);
    this.#asked.delete(message.id);
    if (!asked) return undefined;
    if (message.error) asked.reject(new Refused(message.error));
    else asked.resolve(message.result);
    return undefined;
  }
}
