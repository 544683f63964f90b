// Starts a sandbox with the generated types, runs a command in it, reads its output, and ends it.
import createClient from "openapi-fetch";
import type { paths } from "./penfold.js";

const [baseUrl, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${token}` } });

function right<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw new Error(`${answer.response.status}: ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

const made = right(await client.POST("/v1/sandboxes", { body: { command: ["sh", "-c", "echo begun; exec sleep 600"] } }));
const params = { path: { id: made.id } };
const job = { command: ["sh", "-c", "echo out; exit 3"] };
const exec = right(
  await client.POST("/v1/sandboxes/{id}/execs", { params: { ...params, query: { wait: 1 } }, body: job }),
);
const { data: logs } = await client.GET("/v1/sandboxes/{id}/logs", {
  params: { ...params, query: { format: "raw" } },
  parseAs: "text",
});
const ended = right(await client.POST("/v1/sandboxes/{id}/kill", { params }));
right(await client.DELETE("/v1/sandboxes/{id}", { params }));
const gone = await client.GET("/v1/sandboxes/{id}", { params });
console.log(JSON.stringify([exec.stdout?.text, exec.exit, logs, ended.result, gone.error?.type]));
