// A server on the official TypeScript SDK 2.x that speaks both eras: its tools ask with requests of their own.
// Without arguments over stdio, else over HTTP at this port, where its legacy era has no sessions.

import { createServer } from "node:http";
import { Readable } from "node:stream";
import { McpServer, createMcpHandler, fromJsonSchema } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const schema = { type: "object", properties: { message: { type: "string" } }, required: ["message"] };
const text = (value) => ({ content: [{ type: "text", text: JSON.stringify(value) }] });

function make() {
  const server = new McpServer({ name: "typescript", version: "1" }, { capabilities: { tools: {} } });
  const inputSchema = fromJsonSchema(schema);
  server.registerTool("elicit", { inputSchema }, async ({ message }) => {
    const requestedSchema = { type: "object", properties: { answer: { type: "string" } }, required: ["answer"] };
    return text(await server.server.elicitInput({ message, requestedSchema }));
  });
  server.registerTool("sample", { inputSchema }, async ({ message }) => {
    const messages = [{ role: "user", content: { type: "text", text: message } }];
    return text(await server.server.createMessage({ messages, maxTokens: 10 }));
  });
  return server;
}

const port = process.argv[2];
if (!port) {
  serveStdio(make);
} else {
  const { fetch } = createMcpHandler(make);
  createServer(async (request, response) => {
    const body = request.method === "POST" ? Readable.toWeb(request) : undefined;
    const asked = new Request(`http://127.0.0.1:${port}${request.url}`, {
      method: request.method,
      headers: request.headers,
      body,
      duplex: "half",
    });
    const answer = await fetch(asked);
    response.writeHead(answer.status, Object.fromEntries(answer.headers));
    if (answer.body) Readable.fromWeb(answer.body).pipe(response);
    else response.end();
  }).listen(Number(port), "127.0.0.1");
}
