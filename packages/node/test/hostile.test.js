// Trees that outlive plain `child_process`, and leave nothing with penfold.
import assert from 'node:assert/strict';
import childProcess from 'node:child_process';
import { once } from 'node:events';
import { closeSync, cpSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

import * as penfold from '../index.js';
import { Tree, events, isAlive, waitUntil } from './tree.js';

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

/** A stand-in for penfold that waits before it becomes penfold: there Node dies. */
const SHIM = `#!/bin/sh
directory=\${0%/*}
echo $$ >"$directory/new" && mv "$directory/new" "$directory/pid" && read -r _ <"$directory/gate" && exec '${binary}' "$@"
`;

hostile('Node is killed before penfold looks at its parent', async (tree) => {
  const directory = mkdtempSync(path.join(os.tmpdir(), 'penfold-node-'));
  const place = (name) => path.join(directory, name);
  let gate;
  try {
    writeFileSync(place('shim'), SHIM, { mode: 0o755 });
    childProcess.execFileSync('mkfifo', [place('gate')]);
    // A copy of the package, since an installed one finds the program of its platform first.
    for (const name of ['index.js', 'lib', 'package.json']) cpSync(path.join(index, '..', name), place(name), { recursive: true });
    const script = `
      import { spawn } from ${JSON.stringify(place('index.js'))};
      spawn('touch', [${JSON.stringify(place('ran'))}], { stdio: 'ignore' });`;
    const env = { ...tree.env, PENFOLD_BIN: place('shim') };
    // Opened for both, so that it never waits for a reader.
    gate = openSync(place('gate'), 'r+');
    for (const isKilled of [false, true]) {
      const node = childProcess.spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'inherit', env });
      const exit = once(node, 'exit');
      await waitUntil('the stand-in runs', () => existsSync(place('pid')));
      const pid = readFileSync(place('pid'), 'latin1').trim();
      rmSync(place('pid'));
      if (isKilled) {
        node.kill('SIGKILL');
        await exit;
      }
      assert.ok(isAlive(pid));
      writeSync(gate, '\n');
      await waitUntil('penfold ends', () => !isAlive(pid));
      await exit;
      assert.equal(existsSync(place('ran')), !isKilled);
      rmSync(place('ran'), { force: true });
    }
  } finally {
    if (gate !== undefined) closeSync(gate);
    rmSync(directory, { recursive: true });
  }
});

hostile('a worker thread, and a session of its own', async (tree) => {
  const script = `
    const { parentPort, workerData } = require('node:worker_threads');
    import(workerData).then(({ spawn }) =>
      spawn('sh', ['-c', 'exit 5'], { stdio: 'ignore', detached: true }).on('exit', (...how) => parentPort.postMessage(how)));`;
  const worker = new Worker(script, { eval: true, workerData: index, env: tree.env });
  assert.deepEqual(await once(worker, 'message'), [[5, null]]);
});

/** How commands end that are killed with this signal: at a time limit, by an AbortSignal, and with too much output. */
async function killed({ spawn, spawnSync, execFile, exec }, killSignal, env) {
  const limited = { env, killSignal, timeout: 300 };
  const loud = { env, killSignal, maxBuffer: 2 };
  const words = ['-c', 'setsid sleep 20 & exec sleep 20'];
  const result = (run, ...words) =>
    new Promise((resolve) =>
      run(...words, (error, out) => resolve([error?.code, error?.killed, error?.signal, error?.name, out])),
    );
  const controller = new AbortController();
  const aborted = spawn('sh', words, { env, stdio, killSignal, signal: controller.signal });
  aborted.on('spawn', () => setTimeout(() => controller.abort(), 300));
  const seen = await Promise.all([
    events(aborted),
    events(spawn('sh', words, { ...limited, stdio })),
    result(execFile, 'sleep', ['20'], limited),
    result(execFile, 'sh', ['-c', 'echo out; exec sleep 20'], loud),
    result(exec, 'exec sleep 20', limited),
    result(exec, 'echo out; exec sleep 20', loud),
  ]);
  const { status, signal, error } = spawnSync('sh', words, { ...limited, stdio });
  return [...seen, [status, signal, error.code]];
}

for (const killSignal of ['SIGABRT', 'sigsegv', os.constants.signals.SIGTRAP]) {
  hostile(`the kill signal ${killSignal}`, async (tree) => {
    const plain = await killed(childProcess, killSignal, tree.env);
    tree.end(binary);
    const ours = await killed(penfold, killSignal, tree.env);
    assert.deepEqual(tree.names(), []);
    assert.deepEqual(ours, plain);
  });
}

hostile('kill with the kill signal', async (tree) => {
  const options = { stdio, env: tree.env, killSignal: 'SIGABRT' };
  const child = penfold.spawn('sh', ['-c', 'setsid sleep 20 & exec sleep 20'], options);
  await waitUntil('the tree stands', () => tree.names().filter((name) => name === 'sleep').length === 2);
  assert.throws(() => child.kill('SIGSEGV'), { code: 'ERR_PENFOLD_SIGNAL' });
  assert.equal(child.kill('SIGABRT'), true);
  assert.deepEqual(await once(child, 'exit'), [null, 'SIGABRT']);
  assert.deepEqual(tree.names(), []);
});

hostile('a kill signal that stops or continues a process', async (tree) => {
  for (const name of ['STOP', 'TSTP', 'TTIN', 'TTOU', 'CONT', 'stop']) {
    const killSignal = name === 'stop' ? os.constants.signals.SIGSTOP : `SIG${name}`;
    const options = { env: tree.env, killSignal };
    for (const run of [penfold.spawn, penfold.execFile, penfold.spawnSync]) {
      assert.throws(() => run('sleep', ['5'], options), { name: 'PenfoldError', code: 'ERR_PENFOLD_SIGNAL' });
    }
    assert.throws(() => penfold.exec('sleep 5', options), { code: 'ERR_PENFOLD_SIGNAL' });
  }
  assert.deepEqual(tree.names(), []);
});

hostile('spawnSync ends a command that says too much', async (tree) => {
  const words = ['-c', 'printf 0123456789; exec sleep 20'];
  for (const more of [{}, { killSignal: 'SIGKILL' }, { killSignal: 'SIGABRT' }, { encoding: 'utf8' }]) {
    const [plain, ours] = [childProcess, penfold].map(({ spawnSync }) => {
      const begun = Date.now();
      const { error, pid, report, ...done } = spawnSync('sh', words, { env: tree.env, maxBuffer: 5, ...more });
      assert.ok(Date.now() - begun < 10_000);
      assert.deepEqual(tree.names(), []);
      assert.equal(report?.verified ?? true, true);
      return { ...done, code: error.code, message: error.message };
    });
    assert.deepEqual(ours, plain);
  }
});

hostile('the report of spawnSync with little room', async (tree) => {
  const before = process.env.TMPDIR;
  try {
    // The report comes by a file, or by a pipe where there can be no file.
    for (const place of [os.tmpdir(), '/no/such']) {
      process.env.TMPDIR = place;
      const { status, stdout, output, report, error } = penfold.spawnSync(
        'sh',
        ['-c', 'ls /proc/self/fd; setsid sleep 20 & exit 3'],
        { env: tree.env, maxBuffer: 99, encoding: 'utf8' },
      );
      assert.deepEqual([status, output.length, error], [3, 3, undefined]);
      // The fourth is of `ls`: the command has not the file. Those beyond 200 are of the caller of the tests.
      assert.deepEqual(stdout.match(/\d+/g).filter((number) => number < 200), ['0', '1', '2', '3']);
      assert.deepEqual([report.exitCode, report.verified, report.strays.length], [3, true, 1]);
    }
  } finally {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
  }
});

hostile('spawnSync returns at the end of the tree, though penfold was killed', async (tree) => {
  // The supervisor, the parent of the command, is the child of `penfold run`.
  const words = ['-c', 'setsid sleep 20 & kill -9 $(cut -d" " -f4 /proc/$PPID/stat); exec sleep 20'];
  // No pipe of the command, for which Node would wait. The limit is for a report by a file, and by a pipe.
  for (const maxBuffer of [...Array(15).fill(1000), undefined]) {
    const { signal, error, report } = penfold.spawnSync('sh', words, { stdio, env: tree.env, maxBuffer });
    assert.deepEqual(tree.names(), []);
    assert.deepEqual([signal, error, report.verified], ['SIGKILL', undefined, true]);
  }
});
