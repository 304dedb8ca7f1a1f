// The official TypeScript SDK 2.x as a client: it looks for 2026-07-28 first, as we ask it to.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { command, elicited, finish, read, roots, sampled, started } from "./job.mjs";

const job = await read();
const report = started();
const transport = job.server.url
  ? new StreamableHTTPClientTransport(new URL(job.server.url), { requestInit: { headers: job.server.headers } })
  : new StdioClientTransport(command(job.server));
const client = new Client(
  { name: job.name, version: "1" },
  {
    capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} },
    versionNegotiation: { mode: "auto" },
  },
);
client.setRequestHandler("elicitation/create", async ({ params }) => {
  report.asked.push(params.message);
  return elicited(job, params.requestedSchema);
});
client.setRequestHandler("sampling/createMessage", async ({ params }) => {
  report.asked.push(params.messages[0].content.text);
  return sampled(job);
});
client.setRequestHandler("roots/list", async () => {
  report.asked.push("roots");
  return roots(job);
});
client.setNotificationHandler("notifications/message", ({ params }) => {
  report.logs.push(String(params.data));
});
await client.connect(transport);
report.protocol = client.getNegotiatedProtocolVersion();
const _meta = { "io.modelcontextprotocol/logLevel": "info" };
await finish(client, (params, options) => client.callTool({ ...params, _meta }, options), job, report);
