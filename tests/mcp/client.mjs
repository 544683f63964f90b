// node client.mjs PENFOLD ROOT
//
// Drives `penfold mcp` with the published TypeScript SDK. Prints a line for each check that failed, and the numbers.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { execFileSync } from "node:child_process";

const [program, root] = process.argv.slice(2);
let passed = 0;
const failed = [];
function check(name, holds, seen) {
  if (holds) passed += 1;
  else failed.push(`${name}: ${JSON.stringify(seen)}`);
}

async function connect(...flags) {
  const client = new Client({ name: "penfold-test", version: "1.0.0" });
  const args = ["--root", root, "mcp", ...flags];
  await client.connect(new StdioClientTransport({ command: program, args, stderr: "inherit" }));
  return client;
}
const call = (client, name, args, options) => client.callTool({ name, arguments: args }, undefined, options);

const server = `const server = require("node:http").createServer((_, answer) => answer.end("hello"));
server.listen(0, "127.0.0.1", () => console.log("\\x1b[32mready\\x1b[0m on", server.address().port));`;

const client = await connect();
const { tools } = await client.listTools();
check("tools", tools.map((tool) => tool.name).join() === "run,ps,logs,exec,stop,report,ports", tools);
const ran = await call(client, "run", { command: [process.execPath, "-e", server], name: "web", ready_port: 0 });
check("run", !ran.isError && ran.structuredContent.ready === true, ran);
const port = ran.structuredContent.ports[0].port;
check("the server answers", (await (await fetch(`http://127.0.0.1:${port}`)).text()) === "hello", port);
const log = await call(client, "logs", { sandbox: "web", until: `ready on ${port}` });
check("logs", log.structuredContent.found && log.content[0].text.includes(`ready on ${port}`), log);
const ports = await call(client, "ports", { sandbox: "web" });
check("ports", ports.structuredContent.ports[0].port === port, ports);
const exec = await call(client, "exec", { sandbox: "web", shell: "echo $PWD; exit 3" });
check("exec", exec.structuredContent.exit.code === 3 && exec.structuredContent.stdout.includes("/"), exec);
const wrong = await call(client, "run", { comand: "x" });
check("a wrong argument is a tool error", wrong.isError && wrong.content[0].text.includes("comand"), wrong);
await client.callTool({ name: "rm", arguments: {} }).then(
  (answer) => check("an unknown tool", false, answer),
  (error) => check("an unknown tool", error.code === -32602, error),
);
const abort = new AbortController();
const waiting = call(client, "logs", { sandbox: "web", until: "never", timeout_s: 600 }, { signal: abort.signal });
const listed = await call(client, "ps", {});
check("ps beside a wait", listed.structuredContent.sandboxes[0].started_here === true, listed);
abort.abort();
await waiting.then(
  (answer) => check("an aborted wait", false, answer),
  () => check("an aborted wait", true),
);
const stopped = await call(client, "stop", { sandbox: "web" });
check("stop", stopped.structuredContent.gone === true, stopped);
check("the port is free", await fetch(`http://127.0.0.1:${port}`).then(() => false, () => true), port);
const report = await call(client, "report", { sandbox: "web" });
check("report", report.structuredContent.report.verified === true, report);
await call(client, "run", { shell: "trap '' TERM; setsid sleep 1000 & sleep 1000", grace_s: 0.2 });
const before = execFileSync(program, ["--root", root, "ps", "-q"], { encoding: "utf8" });
check("one runs", before.trim().length === 12, before);
await client.close();
const after = execFileSync(program, ["--root", root, "ps", "-q"], { encoding: "utf8" });
check("close leaves nothing", after === "", after);

const reader = await connect("--read-only");
check("read-only", (await reader.listTools()).tools.length === 4);
check("read-only run", (await call(reader, "run", { command: ["true"] })).isError === true);
await reader.close();

for (const line of failed) console.log(`failed: ${line}`);
console.log(`${passed} passed, ${failed.length} failed`);
process.exit(failed.length ? 1 : 0);
