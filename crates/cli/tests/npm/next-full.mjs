// Calls a server that has few descriptors, with the published prerelease of 0.13, by its `getSandbox`.
//
//   node --import ./hooks.mjs next-full.mjs CLIENT BASE_URL DIRECTORY
//
// CLIENT is an alias of package.json; DIRECTORY is an empty one that both sides see. Prints a line for each check, and exits with 1 if
// one failed.
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { nextSandbox } from './rpc.mjs';
import { runAll, silence, until, within } from './checks.mjs';

const [alias, baseUrl, directory] = process.argv.slice(2);
const client = await import(alias);
const print = silence();
const sandbox = nextSandbox(client, baseUrl);
const { port, hostname } = new URL(baseUrl);
const tree = await sandbox.exec(['sleep', '1000']);
await sandbox.writeFile(`${directory}/a`, 'text');

/** Opens connections that say nothing: each takes a descriptor of the server as soon as it is accepted. */
const hold = (count) =>
  Promise.all(
    Array.from({ length: count }, () => {
      const socket = connect(Number(port), hostname);
      return new Promise((resolve) => ['connect', 'error'].forEach((event) => socket.on(event, () => resolve(socket))));
    }),
  );
const calls = [
  () => sandbox.exec(['true']),
  () => sandbox.createTerminal({ command: ['true'] }),
  () => sandbox.readFile(`${directory}/a`),
  () => sandbox.writeFile(`${directory}/b`, 'text'),
  () => sandbox.listFiles(directory),
  () => sandbox.checkChanges(directory),
  () => sandbox.watch(directory),
  () => sandbox.listProcesses(),
  () => tree.status(),
  () => tree.logs({ follow: true }),
];
/** What a refusal says: nothing of a sandbox that could not be looked at. The last is that of the client, which has got no socket. */
const REFUSALS = /Too many open files|no descriptors left|as many open streams|too many connections|WebSocket upgrade failed: 502/;

/** Makes each call many times at once, while connections are held. Returns the number of those that succeeded. */
const burst = async (held) => {
  const sockets = await hold(held);
  const all = await Promise.all(calls.flatMap((call) => Array.from({ length: 8 }, () => within(10_000, call()).then(
    (value) => ({ value }),
    (error) => ({ error }),
  ))));
  for (const { error } of all.filter(({ error }) => error)) {
    assert.ok(error instanceof Error);
    assert.match(error.message, REFUSALS);
  }
  const good = all.filter(({ error }) => !error);
  await Promise.all(good.map(({ value }) => value?.cancel?.()));
  for (const socket of sockets) socket.destroy();
  return good.length;
};

/** Each call succeeds again, and nothing has happened to what was there. */
const recovers = async () => {
  for (const call of calls) {
    await until('there is room again', () => call().then(
      async (value) => {
        await value?.cancel?.();
        return true;
      },
      (error) => {
        assert.match(error.message, REFUSALS);
        return false;
      },
    ));
  }
  assert.equal((await sandbox.readFile(`${directory}/a`)).content, 'text');
  assert.equal((await tree.status()).state, 'running');
  assert.ok((await sandbox.listProcesses()).some(({ id }) => id === tree.id));
};

const checks = Object.fromEntries([0, 10, 20, 60].map((held) => [
  `with ${held} connections that say nothing, each call succeeds or is refused, and all succeed afterwards`,
  async () => {
    const good = await burst(held);
    assert.ok(good < 8 * calls.length, 'nothing was refused');
    await recovers();
  },
]));
checks['the process ends with all that it started'] = async () => {
  await tree.kill();
  assert.equal((await tree.status()).state, 'exited');
};

await runAll(checks, print);
