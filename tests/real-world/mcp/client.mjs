// node client.mjs close|killed TOKEN -- COMMAND ARGUMENTS…
//
// Starts an MCP server, asks it something, and closes the connection or is killed. Prints how many processes with TOKEN in
// their arguments are left after some seconds, and their command lines on standard error.
import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [ending, token, , command, ...args] = process.argv.slice(2);

// Knows nothing of penfold: the arguments of all processes, besides the client's own two and those of penfold.
function left() {
  const found = [];
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const line = readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
      const is_program = line.includes(token) && !line.includes("client.mjs") && !line.includes("penfold");
      if (is_program && readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)[0] !== "Z") found.push(line);
    } catch {
      // It has ended meanwhile.
    }
  }
  return found;
}

async function until(done, seconds) {
  const end = Date.now() + seconds * 1000;
  while (!done() && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 50));
  return done();
}

async function connect() {
  const client = new Client({ name: "real-world", version: "1.0.0" });
  await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));
  await client.ping();
  return client;
}

if (ending === "hold") {
  await connect();
  console.log("connected");
} else {
  let end;
  if (ending === "close") {
    const client = await connect();
    end = () => client.close();
  } else {
    const words = process.argv.slice(1);
    words[1] = "hold";
    const holder = spawn(process.execPath, words, { stdio: ["ignore", "pipe", "inherit"] });
    await new Promise((resolve, reject) => {
      holder.stdout.once("data", resolve);
      holder.once("exit", () => reject(new Error("the client did not connect")));
    });
    end = () => holder.kill("SIGKILL");
  }
  if (!(await until(() => left().length > 0, 5))) throw new Error("the server was never seen");
  await end();
  await until(() => left().length === 0, 8);
  for (const line of left()) console.error(`  left: ${line}`);
  console.log(left().length);
  // What is left holds the pipes of this process open.
  process.exit(0);
}
