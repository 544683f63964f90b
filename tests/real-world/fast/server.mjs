// An MCP server. With `deaf` it outlives its input, as servers with a timer, a watcher or a database connection do.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";

const server = new McpServer({ name: "real-world", version: "1.0.0" });
await server.connect(new StdioServerTransport());
if (process.argv.includes("deaf")) setInterval(() => {}, 1000);
