// The official TypeScript SDK 1.x as a client that stays. See `telling.py`.

import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const tell = (what) => console.log(JSON.stringify(what));
const server = JSON.parse(process.argv[2]);
const transport = new StreamableHTTPClientTransport(new URL(server.url), {
  requestInit: { headers: server.headers },
});
const client = new Client({ name: "telling", version: "1" });
client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => tell({ updated: params.uri }));
await client.connect(transport);
await client.subscribeResource({ uri: process.argv[3] });
tell({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const [name, args] = JSON.parse(line);
  try {
    tell({ text: (await client.callTool({ name, arguments: args })).content[0].text });
  } catch (error) {
    tell({ failed: String(error) });
  }
}
process.exit(0);
