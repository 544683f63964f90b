# A browser below an MCP server whose client is killed. The lock of the profile must be free for the next one.
# rows: killed
# needs: browser
# programs: chromium
# title: `@playwright/mcp` with Debian's `chromium` | SIGKILL to the client
profile=$DIRECTORY/profile-$TOKEN
cat >open.mjs <<JS
import { Client } from "$INSTALLED/browser/node_modules/@modelcontextprotocol/sdk/dist/esm/client/index.js";
import { StdioClientTransport } from "$INSTALLED/browser/node_modules/@modelcontextprotocol/sdk/dist/esm/client/stdio.js";
const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "real-world", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));
const answer = await client.callTool({ name: "browser_navigate", arguments: { url: "data:text/html,here" } });
console.log(answer.isError ? JSON.stringify(answer) : "opened");
JS
node open.mjs "${server_penfold[@]}" node "$INSTALLED/browser/node_modules/.bin/playwright-mcp" --headless --no-sandbox \
    --executable-path "$(command -v chromium)" --user-data-dir "$profile" >said &
client=$!
until grep -qs . said || ! kill -0 "$client"; do sleep 0.05; done
cat said
await 1 chromium
kill -KILL "$client"
wait "$client" 2>/dev/null
# The lock is a link to HOST-PID. It is free if it is gone, or that process is.
until pid=$(readlink "$profile/SingletonLock") || pid=; [[ -z $pid || ! -e /proc/${pid##*-} ]]; do sleep 0.02; done
echo "the profile is free"
