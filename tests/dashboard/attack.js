// What the page of another site can try: everything that a browser sends unasked. Answers what came of each attempt.
async ([base, socket]) => {
  const told = [];
  const attempt = async (name, act) => {
    const patience = new Promise((resolve) => setTimeout(resolve, 10000, "nothing"));
    try {
      told.push([name, await Promise.race([act(), patience])]);
    } catch {
      told.push([name, "refused"]);
    }
  };
  const call = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "echo", arguments: {} } });
  const json = { "Content-Type": "application/json" };
  const paths = ["/mcp", "/servers/one/mcp", "/rpc", "/page/session", "/metrics", "/page/app.js"];
  const ways = {
    text: { method: "POST", body: call, mode: "no-cors" },
    json: { method: "POST", body: call, headers: json },
    key: { method: "POST", body: "{}", headers: { "X-Mcpd-Page": "1" } },
    get: {},
    quiet: { mode: "no-cors" },
    delete: { method: "DELETE" },
  };
  for (const path of paths) {
    for (const [name, options] of Object.entries(ways)) {
      await attempt(`${name} ${path}`, async () => {
        const answer = await fetch(base + path, { ...options, credentials: "include" });
        return answer.type === "opaque" || answer.status === 403 ? "refused" : `read ${answer.status}`;
      });
    }
  }
  await attempt("beacon", async () => (navigator.sendBeacon(base + "/mcp", call), "refused"));
  for (const protocols of [[], ["mcpd.page"], ["mcpd.page", "key.x"]]) {
    await attempt(`socket ${protocols}`, () => new Promise((resolve) => {
      const opened = new WebSocket(socket + "/page/socket", protocols);
      opened.onopen = () => resolve("open");
      opened.onerror = () => resolve("refused");
    }));
  }
  await attempt("events", () => new Promise((resolve) => {
    const source = new EventSource(base + "/mcp", { withCredentials: true });
    source.onopen = () => resolve("open");
    source.onerror = () => (source.close(), resolve("refused"));
  }));
  const load = (tag, path) => attempt(`${tag} ${path}`, () => new Promise((resolve) => {
    const element = document.createElement(tag);
    element.onload = () => resolve(tag === "iframe" && !element.contentDocument ? "refused" : "loaded");
    element.onerror = () => resolve("refused");
    element.src = base + path;
    document.body.append(element);
  }));
  await load("script", "/page/app.js");
  await load("img", "/page/icon.svg");
  await load("iframe", "/");
  return told;
}
