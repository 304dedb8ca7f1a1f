// The connection to the daemon: JSON-RPC over a WebSocket.

import { key } from "./login.js";

/** An error response of the daemon. */
export class Refused extends Error {
  constructor(error) {
    super(error.message);
    this.data = error.data ?? {};
  }
}

const ODD_NUMBER = /\d{16}|\d[eE]/;

/** Parse JSON; numbers beyond double precision keep their source text if the browser supports `JSON.rawJSON`. */
export function parse(text) {
  if (!JSON.rawJSON || !ODD_NUMBER.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) =>
    (typeof value === "number" && digits(String(value)) !== digits(source) ? JSON.rawJSON(source) : value));
}

/** The significant digits of a number: the same for `4.0` and `4`, none for Infinity. */
const digits = (number) => number.replace(/[eE].*/, "").replace(/\D/g, "").replace(/^0+|0+$/g, "");

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
    const socket = new WebSocket(`ws://${location.host}/page/socket`, ["mcpd.page", `key.${key()}`]);
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
    for (const { reject } of asked) reject(new Error("the connection to mcpd was lost; the request may or may not have been carried out"));
  }

  /** Send a request; returns `{ id, answer }`, where `answer` is a promise of the result. `raw`: params as JSON text. */
  ask(method, params = {}, raw = null) {
    const id = ++this.#last;
    const answer = new Promise((resolve, reject) => {
      if (this.#socket?.readyState !== WebSocket.OPEN) {
        reject(new Error("not connected to mcpd; nothing was sent"));
        return;
      }
      this.#asked.set(id, { resolve, reject });
      const text = raw ?? JSON.stringify(params);
      this.#socket.send(`{"jsonrpc":"2.0","id":${id},"method":${JSON.stringify(method)},"params":${text}}`);
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
    const message = parse(text);
    if (message.method) {
      this.told(message.method, message.params ?? {});
      return;
    }
    const asked = this.#asked.get(message.id);
    this.#asked.delete(message.id);
    if (message.error) asked?.reject(new Refused(message.error));
    else asked?.resolve(message.result);
  }
}
