// The official TypeScript SDK 1.x as a client, which most clients in JavaScript stand on: `initialize` only.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema, LoggingMessageNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { command, elicited, finish, read, roots, sampled, started } from "./job.mjs";

const job = await read();
const report = started();
const Remote = job.server.type === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
const transport = job.server.url
  ? new Remote(new URL(job.server.url), { requestInit: { headers: job.server.headers } })
  : new StdioClientTransport(command(job.server));
const told = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (version) => {
  report.protocol = version; // the client itself does not tell
  told?.(version);
};
const client = new Client(
  { name: job.name, version: "1" },
  { capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} } },
);
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  report.asked.push(params.message);
  return elicited(job, params.requestedSchema);
});
client.setRequestHandler(CreateMessageRequestSchema, async ({ params }) => {
  report.asked.push(params.messages[0].content.text);
  return sampled(job);
});
client.setRequestHandler(ListRootsRequestSchema, async () => {
  report.asked.push("roots");
  return roots(job);
});
client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => {
  report.logs.push(String(params.data));
});
await client.connect(transport);
await finish(client, (params, options) => client.callTool(params, undefined, options), job, report);
