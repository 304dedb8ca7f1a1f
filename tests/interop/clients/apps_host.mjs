// A host of MCP Apps: it lists tools, reads the page of each, calls one, and lets the page call another.
// The bridge between host and page, and the page's side of it, are those of the extension's authors.

import { createHash } from "node:crypto";
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { App } from "@modelcontextprotocol/ext-apps";
import { AppBridge, getToolUiResourceUri, isToolVisibilityAppOnly } from "@modelcontextprotocol/ext-apps/app-bridge";
import { command, read } from "./job.mjs";

class Pipe {
  // One end of a connection between the host and the page.
  async start() {}
  async send(message) {
    queueMicrotask(() => this.other.onmessage?.(structuredClone(message)));
  }
  async close() {
    this.onclose?.();
  }
}

const job = await read(); // { server, modern, tool: [name, arguments], from_page: [name, arguments] or null }
const ui = { mimeTypes: ["text/html;profile=mcp-app"] };
const options = { capabilities: { extensions: { "io.modelcontextprotocol/ui": ui } } };
if (job.modern) options.versionNegotiation = { mode: "auto" };
const client = new Client({ name: "host", version: "1" }, options);
await client.connect(new StdioClientTransport(command(job.server)));

const { tools } = await client.listTools();
const { resources } = await client.listResources();
const report = { extensions: client.getServerCapabilities().extensions ?? {}, tools: {}, resources, pages: {} };
for (const tool of tools) {
  const uri = getToolUiResourceUri(tool);
  if (!uri) continue;
  report.tools[tool.name] = { ...tool, appOnly: isToolVisibilityAppOnly(tool), page: uri };
  const { contents } = await client.readResource({ uri });
  report.pages[uri] = contents.map(({ text, ...rest }) => ({
    ...rest, length: text.length, sha: createHash("sha256").update(text).digest("hex"),
  }));
}
const [name, args] = job.tool;
report.result = await client.callTool({ name, arguments: args });

if (job.from_page) {
  const host = new AppBridge(client, { name: "host", version: "1" }, { serverTools: {}, serverResources: {} });
  const page = new App({ name: "page", version: "1" }, {}, { autoResize: false });
  const [ours, theirs] = [new Pipe(), new Pipe()];
  [ours.other, theirs.other] = [theirs, ours];
  await host.connect(ours);
  await page.connect(theirs);
  const [called, given] = job.from_page;
  report.fromPage = await page.callServerTool({ name: called, arguments: given });
}
console.log(JSON.stringify(report));
await client.close();
