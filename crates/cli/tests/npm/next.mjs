// Drives a server with the published prerelease of 0.13: its class `Sandbox`, whose container is the server.
//
//   node --import ./hooks.mjs next.mjs CLIENT BASE_URL DIRECTORY
//
// CLIENT is an alias of package.json; DIRECTORY is an empty one that both sides see. Prints a line for each check, and exits with 1 if
// one failed.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { open } from './rpc.mjs';

const [alias, baseUrl, directory] = process.argv.slice(2);
const { Sandbox, parseSSEStream, streamFile } = await import(alias);
console.log = ((log) => (...words) => (typeof words[0] === 'string' && words[0].startsWith('{') ? undefined : log(...words)))(console.log);
console.error = () => {};

/** Makes a sandbox as the platform does: its storage is a map, and its container the server. */
const makeSandbox = (stored = new Map()) => {
  const storage = {
    get: async (key) => stored.get(key),
    put: async (key, value) => void stored.set(key, value),
    delete: async (key) => stored.delete(key),
    transaction: (work) => work(storage),
  };
  const fetch = () => open(`${baseUrl.replace(/^http/, 'ws')}/rpc`);
  const ctx = {
    id: 'npm',
    storage,
    container: { running: true, getTcpPort: () => ({ fetch }) },
    blockConcurrencyWhile: (work) => work(),
  };
  return new Sandbox(ctx, {});
};

const stored = new Map();
const sandbox = makeSandbox(stored);
const fails = async (promise, code) => {
  const error = await promise.then(
    () => assert.fail(`it succeeded instead of failing with ${code}`),
    (error) => error,
  );
  assert.equal(error.code, code, error.stack);
  return error;
};
const alive = (pid) => {
  try {
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
  } catch {
    return false;
  }
};
const until = async (what, holds) => {
  const end = Date.now() + 20_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, `not within 20 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};
const read = (file) => {
  try {
    return readFileSync(`${directory}/${file}`, 'utf8').trim();
  } catch {
    return '';
  }
};

const checks = {
  'the runtime is the same for every client': async () => {
    await sandbox.exists('/');
    const { runtimeIncarnationID } = stored.get('currentRuntimeIdentity');
    assert.match(runtimeIncarnationID, /^runtime-/);
    const others = new Map();
    await makeSandbox(others).exists('/');
    assert.equal(others.get('currentRuntimeIdentity').runtimeIncarnationID, runtimeIncarnationID);
  },
  'files are written, read, listed, moved and deleted': async () => {
    const path = `${directory}/files`;
    await sandbox.mkdir(path, { recursive: true });
    await sandbox.writeFile(`${path}/a.txt`, 'café');
    const got = await sandbox.readFile(`${path}/a.txt`);
    assert.deepEqual([got.content, got.encoding, got.isBinary, got.size], ['café', 'utf-8', false, 5]);
    await sandbox.writeFile(`${path}/b.bin`, Buffer.from([0, 255, 1]).toString('base64'), { encoding: 'base64' });
    const binary = await sandbox.readFile(`${path}/b.bin`, { encoding: 'base64' });
    assert.deepEqual([...Buffer.from(binary.content, 'base64')], [0, 255, 1]);
    const listed = await sandbox.listFiles(path);
    assert.deepEqual(listed.files.map(({ name, type }) => [name, type]).sort(), [['a.txt', 'file'], ['b.bin', 'file']]);
    await sandbox.renameFile(`${path}/a.txt`, `${path}/c.txt`);
    await sandbox.moveFile(`${path}/c.txt`, `${path}/d.txt`);
    assert.equal((await sandbox.exists(`${path}/d.txt`)).exists, true);
    assert.equal((await sandbox.exists(`${path}/a.txt`)).exists, false);
    let streamed = '';
    for await (const part of streamFile(await sandbox.readFileStream(`${path}/d.txt`))) {
      streamed += typeof part === 'string' ? part : Buffer.from(part).toString();
    }
    assert.equal(streamed, 'café');
    const parts = [Uint8Array.of(0, 255), Uint8Array.of(1)];
    const source = new ReadableStream({ pull: (to) => (parts.length ? to.enqueue(parts.shift()) : to.close()) });
    assert.equal((await sandbox.writeFile(`${path}/e.bin`, source)).bytesWritten, 3);
    const bytes = await sandbox.readFile(`${path}/e.bin`, { encoding: 'none' });
    assert.deepEqual([...new Uint8Array(await new Response(bytes.content).arrayBuffer())], [0, 255, 1]);
    await sandbox.deleteFile(`${path}/d.txt`);
    await fails(sandbox.readFile(`${path}/d.txt`), 'FILE_NOT_FOUND');
  },
  'what is not served is refused with its name': async () => {
    const error = await fails(sandbox.cleanupMountDirectory('/mnt'), 'UNKNOWN_ERROR');
    assert.match(error.message, /mounts\.removeMountDirectory/);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`not ok ${name}\n    ${String(error.stack ?? error).replaceAll('\n', '\n    ')}`);
  }
}
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
