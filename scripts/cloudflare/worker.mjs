// Serves upstream's test Worker, unchanged, on a port of the loopback address, with the published client in plain Node.
//
//   node worker.mjs SOURCE
//
// SOURCE is the Worker's index.ts. Prints the address, and ends its containers when its input ends or with SIGTERM.
import { Console } from 'node:console';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import { WebSocketServer } from 'ws';
import { Namespace, endContainers } from './platform.mjs';

// The output is for the address alone.
globalThis.console = new Console(process.stderr, process.stderr);

const [source] = process.argv.slice(2);
const { PENFOLD_TEST_WORK: work, PENFOLD_TEST_NPM: npm } = process.env;
const platform = join(dirname(fileURLToPath(import.meta.url)), 'platform.mjs');

// The modules of the platform stay outside of the bundle: both sides share one.
const standIn = {
  name: 'stand-in',
  setup: ({ onResolve }) =>
    onResolve({ filter: /^(@cloudflare\/containers|cloudflare:workers)$/ }, () => ({ path: platform, external: true })),
};
const bundle = join(work, 'worker.mjs');
await build({
  entryPoints: [source],
  outfile: bundle,
  bundle: true,
  format: 'esm',
  platform: 'node',
  target: 'node20',
  nodePaths: [join(npm, 'node_modules')],
  external: ['@opencode-ai/sdk'],
  plugins: [standIn],
  logLevel: 'error',
});
const worker = await import(pathToFileURL(bundle).href);
const names = ['Sandbox', 'SandboxPython', 'SandboxOpencode', 'SandboxStandalone', 'SandboxMusl'];
const env = { SANDBOX_LOG_LEVEL: 'error' };
// Of upstream's images, one has Python.
for (const name of names) env[name] = new Namespace((ctx) => new worker[name](ctx, env), name === 'SandboxPython');

const requestOf = (incoming) => {
  const hasBody = !['GET', 'HEAD'].includes(incoming.method);
  return new Request(`http://${incoming.headers.host}${incoming.url}`, {
    method: incoming.method,
    headers: Object.entries(incoming.headers).flatMap(([name, value]) => [value].flat().map((one) => [name, one])),
    body: hasBody ? Readable.toWeb(incoming) : undefined,
    duplex: 'half',
  });
};
const answerOf = async (incoming) => {
  try {
    return await worker.default.fetch(requestOf(incoming), env, { waitUntil: () => {} });
  } catch (error) {
    return Response.json({ error: String(error?.message ?? error) }, { status: 500 });
  }
};

const server = createServer(async (incoming, outgoing) => {
  const answer = await answerOf(incoming);
  outgoing.writeHead(answer.status, [...answer.headers].flat());
  if (!answer.body) return outgoing.end();
  const body = Readable.fromWeb(answer.body);
  body.on('error', () => outgoing.destroy());
  outgoing.on('close', () => body.destroy());
  body.pipe(outgoing);
});

const sockets = new WebSocketServer({ noServer: true });
/** Passes everything of one socket on to the other. */
const connect = (client, inner) => {
  const close = (socket, code, reason) => socket.close(code >= 3000 || code === 1000 ? code : 1000, reason);
  client.on('message', (data, isBinary) => inner.send(isBinary ? data : String(data)));
  client.on('close', (code) => close(inner, code));
  inner.addEventListener('message', ({ data }) => client.send(data));
  inner.addEventListener('close', ({ code, reason }) => close(client, code, reason));
  inner.addEventListener('error', () => client.terminate());
  inner.accept();
};
server.on('upgrade', async (incoming, socket, head) => {
  const answer = await answerOf(incoming);
  if (answer.status === 101) {
    return sockets.handleUpgrade(incoming, socket, head, (client) => connect(client, answer.webSocket));
  }
  const body = Buffer.from(await answer.arrayBuffer());
  socket.end(`HTTP/1.1 ${answer.status} Refused\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
});

// The connection of a client that leaves fails in places that no call waits for.
process.on('unhandledRejection', (error) => console.error('unhandled:', error?.message ?? error));
const end = async () => {
  // bwrap ends with this process; the script removes the rest.
  setTimeout(() => process.exit(1), 60_000);
  await endContainers();
  process.exit(0);
};
process.on('SIGTERM', end);
process.stdin.on('end', end).resume();
server.listen(0, '127.0.0.1', () => process.stdout.write(`http://localhost:${server.address().port}\n`));
