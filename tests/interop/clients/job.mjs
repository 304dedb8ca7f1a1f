// What `job.py` says, for clients in JavaScript.

export async function read() {
  const parts = [];
  for await (const part of process.stdin) parts.push(part);
  return JSON.parse(Buffer.concat(parts));
}

export const started = () => ({
  protocol: "", tools: [], texts: [], failed: [], asked: [], logs: [], progress: [],
});

/** Fill in a form: each required text with the name. */
export const elicited = (job, schema) => {
  const wanted = schema?.required?.length ? schema.required : ["name"];
  return { action: "accept", content: Object.fromEntries(wanted.map((name) => [name, job.name])) };
};

export const sampled = (job) => ({
  role: "assistant", content: { type: "text", text: job.name }, model: "none", stopReason: "endTurn",
});

export const roots = (job) => ({ roots: [{ uri: `file:///${job.name}`, name: job.name }] });

export const textOf = (content) =>
  content.filter((part) => part.type === "text").map((part) => part.text).join("");

/** Where a server is started from: as `mcpServers` says, in our own environment and more. */
export const command = ({ command, args, env }) => ({ command, args, env: { ...process.env, ...env } });

/** List, make the calls by `call(params, options)`, and print the report. */
export async function finish(client, call, job, report) {
  report.tools = (await client.listTools()).tools.map((tool) => tool.name);
  const onprogress = ({ progress, message }) => report.progress.push(message ?? String(progress));
  const make = ([name, args]) => call({ name, arguments: args }, { onprogress });
  const results = await Promise.all(job.calls.map(make));
  for (const result of results) {
    report.texts.push(textOf(result.content));
    report.failed.push(Boolean(result.isError));
  }
  await client.close();
  console.log(JSON.stringify(report));
  process.exit(0); // a kept-alive connection would hold the process
}
