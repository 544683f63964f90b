// node client.mjs close|hold -- COMMAND ARGUMENTS…
//
// Starts an MCP server with the published SDK, asks it something, and closes the connection or waits to be killed.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [ending, , command, ...args] = process.argv.slice(2);
const client = new Client({ name: "real-world", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));
await client.ping();
console.log("connected");
if (ending === "close") {
  await client.close();
  // What is left holds pipes of this process open.
  process.exit(0);
}
