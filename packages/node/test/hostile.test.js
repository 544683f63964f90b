// Trees that outlive plain `child_process`, and leave nothing with penfold.
import assert from 'node:assert/strict';
import childProcess from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import * as penfold from '../index.js';
import { Tree, events, waitUntil } from './tree.js';

const binary = penfold.findBinary();
const index = fileURLToPath(new URL('../index.js', import.meta.url));
const stdio = 'ignore';

/** Trees that leave something when their first process exits. */
const HOSTILE = {
  setsid: ['sh', '-c', 'setsid sleep 600 & sleep 0.1'],
  background: ['sh', '-c', 'sleep 600 & sleep 600 & sleep 0.1'],
  'double fork': ['sh', '-c', '(sleep 600 &); (setsid sleep 600 &); sleep 0.1'],
  'nohup and disown': ['bash', '-c', 'nohup sleep 600 >/dev/null 2>&1 & disown; sleep 0.1'],
  'ignores TERM': ['bash', '-c', "(trap '' TERM; while :; do sleep 600; done) & sleep 0.1"],
  stopped: ['sh', '-c', 'sleep 600 & kill -STOP $!; sleep 0.1'],
};

/** A test with a tree that is ended whatever happens. */
const hostile = (name, run) =>
  test(name, async () => {
    const tree = new Tree();
    try {
      await run(tree);
    } finally {
      tree.end(binary);
    }
  });

for (const [name, [file, ...args]] of Object.entries(HOSTILE)) {
  hostile(`the command exits: ${name}`, async (tree) => {
    await once(childProcess.spawn(file, args, { stdio, env: tree.env }), 'exit');
    assert.ok(tree.alive().length > 0, 'plain child_process leaves it');
    tree.end(binary);

    const child = penfold.spawn(file, args, { stdio, env: tree.env });
    const [code] = await once(child, 'exit');
    assert.deepEqual(tree.names(), []);
    const report = await child.report();
    assert.deepEqual([code, report.cause, report.verified], [0, 'exit', true]);
    assert.ok(report.strays.length > 0);
  });

  hostile(`a time limit: ${name}`, async (tree) => {
    const words = ['-c', '"$@" & wait; exec sleep 600', 'sh', file, ...args];
    const options = { stdio, env: tree.env, timeout: 500, killSignal: 'SIGKILL' };
    assert.deepEqual(await once(childProcess.spawn('sh', words, options), 'exit'), [null, 'SIGKILL']);
    assert.ok(tree.alive().length > 0, 'plain child_process leaves it');
    tree.end(binary);

    const child = penfold.spawn('sh', words, options);
    assert.deepEqual(await once(child, 'exit'), [null, 'SIGKILL']);
    assert.deepEqual(tree.names(), []);
    const { cause, verified, ended } = await child.report();
    assert.deepEqual([cause, verified], ['kill', true]);
    assert.ok(ended.length >= 2);
  });
}

hostile('eight spinners with a time limit', async (tree) => {
  const words = ['-c', 'for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait'];
  const options = { env: tree.env, timeout: 1000, killSignal: 'SIGKILL' };
  await once(childProcess.spawn('sh', words, { ...options, stdio }), 'exit');
  assert.equal(tree.alive().length, 8);
  tree.end(binary);
  await assert.rejects(penfold.execFilePromise('sh', words, options), { killed: true, signal: 'SIGKILL' });
  assert.deepEqual(tree.names(), []);
});

async function interpreter(tree, module) {
  const script = `
    import { spawn } from ${JSON.stringify(module)};
    const child = spawn('sh', ['-c', 'setsid sleep 600 & (sleep 600 &) ; exec sleep 600'], { stdio: 'ignore' });
    child.on('spawn', () => console.log('up'));
    process.stdin.on('end', () => process.exit(0)).resume();`;
  const words = ['--input-type=module', '-e', script];
  const node = childProcess.spawn(process.execPath, words, { stdio: ['pipe', 'pipe', 'inherit'], env: tree.env });
  await once(node.stdout, 'data');
  await waitUntil('the tree stands', () => tree.names().filter((name) => name === 'sleep').length === 3);
  return node;
}

for (const [name, end] of [
  ['death', (node) => node.kill('SIGKILL')],
  ['exit', (node) => node.stdin.end()],
]) {
  hostile(`${name} of Node`, async (tree) => {
    const plain = await interpreter(tree, 'node:child_process');
    end(plain);
    await once(plain, 'exit');
    assert.equal(tree.names().filter((one) => one === 'sleep').length, 3);
    tree.end(binary);

    const node = await interpreter(tree, index);
    end(node);
    await once(node, 'exit');
    await waitUntil('the tree ends', () => tree.names().length === 0);
  });
}

hostile('kill reaches what left the group', async (tree) => {
  const words = ['-c', 'setsid sleep 600 & (sleep 600 &) ; exec sleep 600'];
  for (const { spawn } of [childProcess, penfold]) {
    const child = spawn('sh', words, { stdio, env: tree.env });
    await waitUntil('the tree stands', () => tree.names().filter((name) => name === 'sleep').length === 3);
    assert.equal(child.kill('SIGKILL'), true);
    assert.deepEqual(await once(child, 'exit'), [null, 'SIGKILL']);
    if (spawn !== childProcess.spawn) break;
    assert.equal(tree.alive().length, 2);
    tree.end(binary);
  }
  assert.deepEqual(tree.names(), []);
});

hostile('SIGTERM is polite to the whole tree', async (tree) => {
  const child = "trap 'echo handled; exit' TERM; echo up; while :; do sleep 0.02; done";
  const process = penfold.spawn('sh', ['-c', 'setsid sh -c "$0" & exec sleep 600', child], { env: tree.env });
  let out = '';
  process.stdout.setEncoding('utf8').on('data', (text) => (out += text));
  await once(process.stdout, 'data');
  process.kill();
  assert.deepEqual(await once(process, 'close'), [null, 'SIGTERM']);
  assert.equal(out, 'up\nhandled\n');
  assert.equal((await process.report()).cause, 'stop');
});

hostile('SIGKILL follows after the grace', async (tree) => {
  const words = ['-c', "trap '' TERM; echo up; while :; do sleep 600; done"];
  const child = penfold.spawn('bash', words, { env: tree.env, grace: 200 });
  await once(child.stdout, 'data');
  const begun = Date.now();
  child.kill();
  assert.deepEqual(await once(child, 'exit'), [null, 'SIGKILL']);
  assert.ok(Date.now() - begun >= 199);
  assert.deepEqual(tree.names(), []);
});

hostile('a kill during the start', async (tree) => {
  for (let round = 0; round < 20; round++) {
    const child = penfold.spawn('sh', ['-c', 'setsid sleep 600 & exec sleep 600'], { stdio, env: tree.env });
    const seen = events(child);
    if (round > 0) await sleep(round / 4);
    child.kill('SIGKILL');
    assert.deepEqual((await seen).slice(-2), [['exit', null, 'SIGKILL'], ['close', null, 'SIGKILL']]);
    assert.deepEqual(tree.names(), []);
    assert.ok((await child.report()).verified);
  }
});

hostile('SIGKILL from outside', async (tree) => {
  const child = penfold.spawn('sh', ['-c', 'setsid sleep 600 & exec sleep 600'], { stdio, env: tree.env });
  await waitUntil('the tree stands', () => tree.names().filter((name) => name === 'sleep').length === 2);
  process.kill(child.pid, 'SIGKILL');
  assert.deepEqual(await once(child, 'exit'), [null, 'SIGKILL']);
  assert.deepEqual(tree.names(), []);
  assert.deepEqual([(await child.report()).cause, (await child.report()).verified], ['owner', true]);
});

hostile('an AbortSignal ends the whole tree', async (tree) => {
  const controller = new AbortController();
  const options = { stdio, env: tree.env, signal: controller.signal, killSignal: 'SIGKILL' };
  const child = penfold.spawn('sh', ['-c', 'setsid sleep 600 & exec sleep 600'], options);
  const seen = events(child);
  await once(child, 'spawn');
  await waitUntil('the tree stands', () => tree.names().filter((name) => name === 'sleep').length === 2);
  controller.abort();
  assert.deepEqual(await seen, [
    ['spawn'],
    ['error', 'ABORT_ERR'],
    ['exit', null, 'SIGKILL'],
    ['close', null, 'SIGKILL'],
  ]);
  assert.deepEqual(tree.names(), []);
});

hostile('close comes although a stray holds the pipe', async (tree) => {
  const { stdout, report } = await penfold.execFilePromise('sh', ['-c', 'echo out; setsid sleep 600 & exit 0'], { env: tree.env });
  assert.equal(stdout, 'out\n');
  assert.equal(report.strays.length, 1);
  assert.deepEqual(tree.names(), []);
});

hostile('spawnSync with a time limit leaves nothing', async (tree) => {
  const words = ['-c', 'setsid sleep 600 & exec sleep 600'];
  for (const killSignal of ['SIGTERM', 'SIGKILL']) {
    const options = { stdio, env: tree.env, timeout: 300, killSignal };
    const plain = childProcess.spawnSync('sh', words, options);
    assert.equal(tree.alive().length, 1);
    tree.end(binary);
    const done = penfold.spawnSync('sh', words, options);
    assert.deepEqual(tree.names(), []);
    assert.deepEqual([done.error.code, done.status, done.signal], [plain.error.code, plain.status, plain.signal]);
    assert.ok(done.report.verified);
  }
});
