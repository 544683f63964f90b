// Uses a server whose sessions end after a second without use, with the published prerelease of 0.13, by its `getSandbox`.
//
//   node --import ./hooks.mjs next-idle.mjs CLIENT BASE_URL DIRECTORY WAY
//
// CLIENT is an alias of package.json; DIRECTORY is not used. WAY is the only use of the session, and the name of a check. Prints a
// line for it, and exits with 1 if it failed.
import assert from 'node:assert/strict';
import { nextSandbox } from './rpc.mjs';
import { alive, runAll, silence, until } from './checks.mjs';

const [alias, baseUrl, , way] = process.argv.slice(2);
const client = await import(alias);
const print = silence();
const sandbox = nextSandbox(client, baseUrl);
/** The times in milliseconds after which a session without use may end, and must. */
const [LIMIT, LATEST] = [1000, 1250];

/** Waits for longer than a session without use lives. */
const outlast = (holds = () => true) => {
  const end = Date.now() + LATEST + 250;
  return until('a while has passed', async () => (await holds()) && Date.now() >= end);
};

const ways = {
  none: async () => {
    const command = await sandbox.exec(['sleep', '1000']);
    const terminal = await sandbox.createTerminal({ command: ['sleep', '1000'] });
    const lastUse = Date.now();
    const { pid } = await terminal.getSnapshot();
    assert.ok(alive(command.pid) && alive(pid));
    await until('the session has ended', () => !alive(command.pid) && !alive(pid));
    const idle = Date.now() - lastUse;
    assert.ok(idle >= LIMIT && idle < 6000, `${idle} ms`);
    // The client is still there. The end is known a moment later, and then the next command is in a new session.
    await until('the end of the command is known', async () => (await command.status()).state === 'exited');
    await until('the end of the terminal is known', async () => (await terminal.getSnapshot()).status === 'exited');
    const next = () => sandbox.exec(['true']).catch((error) => assert.match(error.message, /was destroyed/));
    await until('there is a new session', async () => (await (await next())?.exitCode) === 0);
  },
  asked: async () => {
    const command = await sandbox.exec(['sleep', '1000']);
    await outlast(async () => {
      assert.equal((await command.status()).state, 'running');
      return true;
    });
    assert.ok(alive(command.pid));
  },
  followed: async () => {
    const command = await sandbox.exec(['sleep', '1000']);
    const next = (await command.logs({ follow: true }))[Symbol.asyncIterator]().next();
    await outlast();
    assert.ok(alive(command.pid));
    await command.kill();
    assert.equal((await next).value.type, 'terminal');
  },
  shown: async () => {
    const terminal = await sandbox.createTerminal({ command: ['sleep', '1000'] });
    const { pid } = await terminal.getSnapshot();
    const next = (await terminal.output({ follow: true })).getReader().read();
    await outlast();
    assert.ok(alive(pid));
    await terminal.terminate();
    assert.equal((await next).value.type, 'terminal');
  },
};

await runAll({ [way]: ways[way] }, print);
