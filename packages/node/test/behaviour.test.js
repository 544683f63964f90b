// What the command sees and what the caller gets, compared with `child_process`.
import assert from 'node:assert/strict';
import childProcess from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, openSync, closeSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { inspect, promisify } from 'node:util';

import * as penfold from '../index.js';
import { events } from './tree.js';

const temporary = (run) => async () => {
  const directory = mkdtempSync(path.join(os.tmpdir(), 'penfold-node-'));
  try {
    await run(directory);
  } finally {
    rmSync(directory, { recursive: true });
  }
};

/** Runs with both, and returns the events that are the same. */
async function sameEvents(...words) {
  const plain = await events(childProcess.spawn(...words));
  assert.deepEqual(await events(penfold.spawn(...words)), plain);
  return plain;
}

const callback = (execFile, ...words) =>
  new Promise((resolve) => {
    execFile(...words, (error, stdout, stderr) => {
      const { message, code, killed, signal, cmd } = error ?? {};
      resolve({ message, code, killed, signal, cmd, stdout, stderr });
    });
  });

test('exit codes and signals', async () => {
  assert.deepEqual(await sameEvents('true'), [['spawn'], ['exit', 0, null], ['close', 0, null]]);
  for (const code of [1, 119, 120, 123, 124, 125, 126, 127, 137, 255]) {
    await sameEvents('sh', ['-c', `exit ${code}`]);
  }
  await sameEvents('sh', ['-c', 'kill -9 $$']);
  await sameEvents('sh', ['-c', 'kill -USR1 $$']);
});

test('a program that does not exist', async () => {
  const seen = await sameEvents('no-such-program', ['a']);
  assert.deepEqual(seen, [['error', 'ENOENT'], ['close', -2, null]]);
  const errors = [];
  for (const { spawn } of [childProcess, penfold]) {
    const [error] = await once(spawn('/no/such/program', ['a']), 'error');
    errors.push({ ...error, message: error.message });
  }
  assert.deepEqual(errors[1], errors[0]);
});

test('a program that cannot be executed', temporary(async (directory) => {
  const file = path.join(directory, 'plain');
  writeFileSync(file, 'no program');
  assert.deepEqual(await sameEvents(file), [['error', 'EACCES'], ['close', -13, null]]);
}));

test('a directory that does not exist', async () => {
  assert.deepEqual(await sameEvents('true', [], { cwd: '/no/such' }), [['error', 'ENOENT'], ['close', -2, null]]);
});

test('a failed start says nothing on standard error', async () => {
  const child = penfold.spawn('no-such-program');
  let text = '';
  child.stderr.on('data', (data) => (text += data));
  await events(child);
  assert.equal(text, '');
  await assert.rejects(child.report(), { code: 'ENOENT' });
});

test('the standard streams', async () => {
  const child = penfold.spawn('sh', ['-c', 'cat; echo err >&2']);
  assert.equal(child.stdio.length, 3);
  let [out, err] = ['', ''];
  child.stdout.on('data', (data) => (out += data));
  child.stderr.on('data', (data) => (err += data));
  child.stdin.end('in');
  await once(child, 'close');
  assert.deepEqual([out, err], ['in', 'err\n']);
});

test('more descriptors than three, and no other', temporary(async (directory) => {
  const file = openSync(path.join(directory, 'file'), 'w+');
  for (const { spawn } of [childProcess, penfold]) {
    const child = spawn('bash', ['-c', 'echo four >&4; echo five >&5; echo /proc/self/fd/*'], {
      stdio: ['ignore', 'pipe', 'inherit', 'ignore', 'pipe', file],
    });
    assert.equal(child.stdio.length, 6);
    let [out, four] = ['', ''];
    child.stdout.on('data', (data) => (out += data));
    child.stdio[4].on('data', (data) => (four += data));
    await once(child, 'close');
    assert.equal(four, 'four\n');
    // bash has one of its own beyond 200, and one below for the listing.
    const numbers = out.match(/\d+/g).map(Number).filter((number) => number < 200);
    assert.deepEqual(numbers.slice(-2), [4, 5], out);
  }
  closeSync(file);
  assert.equal(readFileSync(path.join(directory, 'file'), 'utf8'), 'five\nfive\n');
}));

test('ipc', async () => {
  const script = 'process.on("message", (m) => { process.send(m + 1); process.disconnect(); })';
  const child = penfold.spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.send(41);
  const [message] = await once(child, 'message');
  assert.equal(message, 42);
  assert.deepEqual(await once(child, 'exit'), [0, null]);
});

test('the command of the package dies as its child', () => {
  const command = fileURLToPath(new URL('../bin/penfold.js', import.meta.url));
  const env = { ...process.env, PENFOLD_BIN: penfold.findBinary() };
  for (const name of ['INT', 'PIPE', 'TERM', 'HUP', 'USR1', 'QUIT', 'KILL']) {
    const words = [command, '-q', 'run', '--', 'sh', '-c', `kill -${name} $$`];
    const { status, signal } = childProcess.spawnSync(process.execPath, words, { env, stdio: 'ignore' });
    assert.deepEqual([status, signal], [null, `SIG${name}`]);
  }
  const { status } = childProcess.spawnSync(process.execPath, [command, 'run', '--', 'sh', '-c', 'exit 7'], { env });
  assert.equal(status, 7);
});

test('environment, directory, shell', async () => {
  for (const options of [
    { cwd: '/', env: { PATH: process.env.PATH, A: 'b' } },
    { shell: true },
    { shell: '/bin/bash' },
  ]) {
    const words = [options.shell ? 'echo $A $BASH $0' : 'sh', options.shell ? [] : ['-c', 'pwd; echo $A'], options];
    assert.deepEqual(await callback(penfold.execFile, ...words), await callback(childProcess.execFile, ...words));
  }
});

test('execFile: output and errors', async () => {
  for (const words of [
    ['sh', ['-c', 'echo out; echo err >&2']],
    ['sh', ['-c', 'echo out; echo err >&2; exit 3']],
    ['sh', ['-c', 'kill -9 $$']],
    ['no-such-program', ['a']],
    ['sleep', ['600'], { timeout: 200 }],
    ['sleep', ['600'], { timeout: 200, killSignal: 'SIGKILL' }],
    ['yes', { maxBuffer: 100 }],
    ['echo', ['a'], { encoding: 'buffer' }],
    ['echo', ['é'], { encoding: 'latin1' }],
  ]) {
    assert.deepEqual(await callback(penfold.execFile, ...words), await callback(childProcess.execFile, ...words));
  }
});

test('execFile as a promise, and exec', async () => {
  const { stdout, stderr, report } = await promisify(penfold.execFile)('sh', ['-c', 'echo a; echo b >&2']);
  assert.deepEqual([stdout, stderr, report.exitCode], ['a\n', 'b\n', 0]);
  await assert.rejects(penfold.execFilePromise('sh', ['-c', 'echo a; exit 4']), { code: 4, stdout: 'a\n' });
  assert.ok(penfold.execFilePromise('true').child.pid > 0);
  assert.equal((await promisify(penfold.exec)('echo $((1 + 1))')).stdout, '2\n');
  assert.deepEqual(await callback(penfold.exec, 'exit 7'), await callback(childProcess.exec, 'exit 7'));
});

test('spawnSync', () => {
  for (const words of [
    ['sh', ['-c', 'cat; echo err >&2; exit 3'], { input: 'in', encoding: 'utf8' }],
    ['sh', ['-c', 'kill -9 $$']],
    ['echo $0', { shell: true }],
    ['no-such-program', ['a']],
    ['true', { cwd: '/no/such' }],
    ['sleep', ['600'], { timeout: 200 }],
    ['yes', { maxBuffer: 100 }],
  ]) {
    const [plain, ours] = [childProcess, penfold].map(({ spawnSync }) => {
      const { status, signal, stdout, stderr, output, error } = spawnSync(...words);
      // How much is read before the end of one that says too much is chance.
      const out = stdout?.subarray?.(0, 100) ?? stdout;
      return { status, signal, out, stderr, length: output?.length, code: error?.code, message: error?.message };
    });
    assert.deepEqual(ours, plain, words[0]);
  }
});

test('the report', async () => {
  const child = penfold.spawn('sh', ['-c', 'exit 4'], { name: 'of-node' });
  const report = await child.report();
  assert.equal(report.id.length, 12);
  assert.deepEqual([report.exitCode, report.exitSignal, report.cause, report.strays], [4, null, 'exit', []]);
  assert.equal(report.raw.name, 'of-node');
  const killed = await penfold.spawn('sh', ['-c', 'kill -USR1 $$']).report();
  assert.deepEqual([killed.exitCode, killed.exitSignal, killed.cause], [null, 'SIGUSR1', 'signal']);
});

test('failOnLeak', async () => {
  const child = penfold.spawn('sh', ['-c', 'setsid sleep 600 & sleep 0.1'], { failOnLeak: true, stdio: 'ignore' });
  const seen = events(child);
  assert.deepEqual(await seen, [['spawn'], ['error', 'ERR_PENFOLD_LEAK'], ['exit', 0, null], ['close', 0, null]]);
  await assert.rejects(penfold.execFilePromise('sh', ['-c', 'setsid sleep 600 & sleep 0.1'], { failOnLeak: true }), {
    name: 'LeakError',
  });
  await penfold.execFilePromise('true', [], { failOnLeak: true });
});

test('signals', async () => {
  const script = "process.on('SIGUSR2', () => console.log('usr2')); console.log('up'); setInterval(() => {}, 1000)";
  const child = penfold.spawn(process.execPath, ['-e', script]);
  child.stdout.setEncoding('utf8');
  assert.deepEqual(await once(child.stdout, 'data'), ['up\n']);
  assert.ok(child.commandPid > 0 && child.commandPid !== child.pid);
  assert.equal(child.kill(0), true);
  assert.equal(child.kill('SIGUSR2'), true);
  assert.deepEqual(await once(child.stdout, 'data'), ['usr2\n']);
  assert.throws(() => child.kill('SIGSTOP'), { code: 'ERR_PENFOLD_SIGNAL' });
  assert.throws(() => child.kill('SIGNONE'), { code: 'ERR_UNKNOWN_SIGNAL' });
  assert.equal(child.kill('SIGKILL'), true);
  assert.deepEqual([child.killed, await once(child, 'close')], [true, [null, 'SIGKILL']]);
  assert.equal(child.kill(), false);
});

test('arguments that are wrong', () => {
  for (const { spawn } of [childProcess, penfold]) {
    assert.throws(() => spawn(1), TypeError);
    assert.throws(() => spawn(''), TypeError);
    assert.throws(() => spawn('true', 'a'), TypeError);
    assert.throws(() => spawn('true', [], { cwd: 1 }), TypeError);
    assert.throws(() => spawn('true', [], { stdio: 'nonsense' }), TypeError);
  }
  assert.throws(() => penfold.spawn('true', [], { argv0: 'x' }), /argv0/);
});

test('values that are wrong', () => {
  const wrong = [];
  for (const value of [NaN, '5', -1, {}]) wrong.push(['true', [], { maxBuffer: value }], ['true', [], { timeout: value }]);
  for (const value of [Infinity, 1.5]) wrong.push(['true', [], { timeout: value }]);
  for (const value of [5, null, undefined, {}, [], 5n]) wrong.push([value]);
  for (const value of [5, 'x', true]) wrong.push(['true', value], ['true', [], value]);
  for (const killSignal of ['SIGNONE', 999, true]) wrong.push(['true', [], { killSignal }]);
  const thrown = (run, words) => {
    try {
      run(...words);
      return 'nothing';
    } catch ({ name, code, message }) {
      // What Node says of a type is its own.
      return [name, code, code === 'ERR_OUT_OF_RANGE' && message];
    }
  };
  for (const words of wrong) {
    for (const name of ['execFile', 'spawnSync', 'spawn']) {
      // Only these two have the limit.
      if (name === 'spawn' && Object.hasOwn(words[2] ?? {}, 'maxBuffer')) continue;
      const plain = thrown(childProcess[name], words);
      assert.notEqual(plain, 'nothing');
      assert.deepEqual(thrown(penfold[name], words), plain, `${name} ${inspect(words)}`);
    }
  }
  for (const words of [[5], [null], ['true', { timeout: -1 }]]) {
    assert.deepEqual(thrown(penfold.exec, words), thrown(childProcess.exec, words));
  }
});

test('an option that penfold refuses', async () => {
  const child = penfold.spawn('true', [], { contain: 'nonsense', stdio: ['ignore', 'ignore', 'ignore'] });
  assert.deepEqual(await events(child), [['error', 'ERR_PENFOLD_START'], ['close', 125, null]]);
});

test('a time limit of penfold', async () => {
  const child = penfold.spawn('sleep', ['600'], { timeLimit: 100 });
  assert.deepEqual(await once(child, 'exit'), [124, null]);
  assert.equal((await child.report()).cause, 'timeout');
});

test('a server is not asked', async () => {
  const env = { ...process.env, PENFOLD_HOST: 'unix:/no/such/socket' };
  const { stdout } = await penfold.execFilePromise('printenv', ['PENFOLD_HOST'], { env });
  assert.equal(stdout, 'unix:/no/such/socket\n');
});

test('many at once', async () => {
  const run = async (code) => {
    const child = penfold.spawn('sh', ['-c', `setsid sleep 600 & exit ${code}`], { stdio: 'ignore' });
    return (await once(child, 'exit'))[0];
  };
  const codes = Array.from({ length: 32 }, (_, code) => code);
  assert.deepEqual(await Promise.all(codes.map(run)), codes);
});

test('unref lets Node exit', async () => {
  const index = new URL('../index.js', import.meta.url).href;
  const script = `import { spawn } from ${JSON.stringify(index)}; spawn('sleep', ['600'], { stdio: 'ignore' }).unref();`;
  const done = childProcess.spawnSync(process.execPath, ['--input-type=module', '-e', script], { timeout: 20_000 });
  assert.deepEqual([done.status, done.signal], [0, null]);
});

/** What a script prints in a copy of Node of its own, with these variables. */
const isolated = (script, env) => {
  const index = new URL('../index.js', import.meta.url).href;
  const source = `const penfold = await import(${JSON.stringify(index)}); ${script}`;
  const options = { env: { ...process.env, ...env }, encoding: 'utf8' };
  return childProcess.spawnSync(process.execPath, ['--input-type=module', '-e', source], options).stdout;
};

test('other platforms', () => {
  const script = `
    try { penfold.spawn('true'); } catch (error) { console.log(error.name, error.message, penfold.isSupported()); }`;
  const out = isolated(`Object.defineProperty(process, 'platform', { value: 'darwin' }); ${script}`, {});
  assert.equal(out, 'UnsupportedPlatformError penfold works on Linux only, and this platform is darwin false\n');
});

/** The package without that of the platform. */
const packaged = penfold.findBinary().includes('node_modules');

test('no program', { skip: packaged && 'the package of the platform is installed' }, temporary((directory) => {
  const script = "try { penfold.spawn('true'); } catch (error) { console.log(error.code, error.message); }";
  assert.match(isolated(script, { PENFOLD_BIN: '', PATH: directory }), /^ERR_PENFOLD_BINARY there is no penfold program/);
  assert.match(isolated(script, { PENFOLD_BIN: '/no/such/file' }), /'\/no\/such\/file', which is not an executable file/);
  symlinkSync(penfold.findBinary(), path.join(directory, 'penfold'));
  assert.equal(isolated('console.log(penfold.findBinary())', { PENFOLD_BIN: '', PATH: directory }), `${directory}/penfold\n`);
}));

test('what is not verified is an error', { skip: packaged && 'the package of the platform is installed' }, temporary((directory) => {
  const report = { id: '0'.repeat(12), cause: 'exit', exit: { code: 3 }, verified: false, survivors: [{ pid: 42 }] };
  const line = JSON.stringify({ event: 'ended', report });
  const file = path.join(directory, 'stand-in');
  writeFileSync(file, `#!/bin/sh\necho '${line}' >&3\nexit 120\n`);
  chmodSync(file, 0o755);
  const script = `
    const child = penfold.spawn('x');
    child.on('error', (error) => console.log(error.name, error.report.survivors[0].pid));
    child.on('exit', (code) => console.log(code));`;
  assert.equal(isolated(script, { PENFOLD_BIN: file }), 'NotVerifiedError 42\n120\n');
}));
