// Drives a server with the published prerelease of 0.13, by its `getSandbox`: the container of the sandbox is the server.
//
//   node --import ./hooks.mjs next.mjs CLIENT BASE_URL DIRECTORY
//
// CLIENT is an alias of package.json; DIRECTORY is an empty one that both sides see. Prints a line for each check, and exits with 1 if
// one failed.
import assert from 'node:assert/strict';
import { nextSandbox, open } from './rpc.mjs';
import { alive, runAll, silence, textOf, until } from './checks.mjs';

const [alias, baseUrl, directory] = process.argv.slice(2);
const client = await import(alias);
const { parseSSEStream, streamFile } = client;
const print = silence();
const makeSandbox = (stored) => nextSandbox(client, baseUrl, stored);

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
const read = (file) => textOf(`${directory}/${file}`);

const { exec, getProcess, listProcesses } = sandbox;
const collect = async (stream) => {
  const all = [];
  for await (const event of stream) all.push(event);
  return all;
};

/** Reads the output of a terminal until it has this text. What comes with it is read, too. */
const showUntil = async (output, wanted) => {
  let text = '';
  for (;;) {
    const { done, value } = await output.read();
    assert.ok(!done && value.type !== 'terminal', `it ended without ${wanted}: ${text}`);
    text += Buffer.from(value.data).toString();
    if (wanted instanceof RegExp ? wanted.test(text) : text.includes(wanted)) return { text, cursor: value.cursor };
  }
};
const rest = async (output) => {
  const all = [];
  for (;;) {
    const { done, value } = await output.read();
    if (done) return all;
    all.push(value);
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
  'a command of words runs without a shell, and gives its output and its code': async () => {
    const process = await exec(['sh', '-c', 'printf "%s|" "$@"; echo $COLOUR; pwd; echo err >&2; exit 3', 'sh', 'a b', '$HOME'], {
      cwd: directory,
      env: { COLOUR: 'blue' },
    });
    assert.match(process.id, /^proc_/);
    assert.equal(await process.exitCode, 3);
    const output = await process.output({ encoding: 'utf8' });
    assert.deepEqual(output, {
      stdout: `a b|$HOME|blue\n${directory}\n`,
      stderr: 'err\n',
      exitCode: 3,
      signal: undefined,
      timedOut: false,
      truncated: false,
    });
    const status = await process.status();
    assert.deepEqual([status.state, status.id, status.pid, status.cwd], ['exited', process.id, process.pid, directory]);
    assert.deepEqual([status.exit.code, status.command.at(-1)], [3, '$HOME']);
    assert.ok(Date.parse(status.endedAt) >= Date.parse(status.startedAt));
  },
  'bytes arrive as they are, and a large output arrives whole': async () => {
    const odd = await (await exec(['printf', '\\000\\377a'])).output();
    assert.deepEqual([...odd.stdout], [0, 255, 97]);
    const large = await exec(['sh', '-c', 'head -c 3000000 /dev/zero | tr "\\0" x']);
    const { stdout } = await large.output({ encoding: 'utf8' });
    assert.deepEqual([stdout.length, stdout.replaceAll('x', '')], [3_000_000, '']);
  },
  'output is followed, and read again from a cursor': async () => {
    const process = await exec(['sh', '-c', `echo one; while [ ! -e ${directory}/go ]; do sleep 0.01; done; echo two`]);
    const { match, cursor } = await process.waitForLog('one');
    assert.equal(match, 'one');
    const soFar = await collect(await process.logs());
    assert.deepEqual(soFar.map(({ type }) => type), ['stdout']);
    const later = collect(await process.logs({ since: cursor, follow: true }));
    const fresh = collect(await process.logs({ replay: false, follow: true }));
    await sandbox.writeFile(`${directory}/go`, '');
    for (const events of [await later, await fresh]) {
      assert.deepEqual(events.map(({ type }) => type), ['stdout', 'terminal']);
      assert.equal(Buffer.from(events[0].data).toString(), 'two\n');
      assert.deepEqual([events[1].state, events[1].exit], ['exited', { code: 0, timedOut: false }]);
    }
    await fails(process.logs({ since: 'x' }), 'INVALID_PROCESS_CURSOR');
    await fails(process.logs({ since: '99999' }), 'INVALID_PROCESS_CURSOR');
  },
  'a process is found again by its id, and listed': async () => {
    const process = await exec(['sleep', '1000']);
    const found = await makeSandbox(stored).getProcess(process.id);
    assert.equal(found.pid, process.pid);
    assert.equal((await found.status()).state, 'running');
    const listed = await listProcesses();
    assert.deepEqual(listed.find(({ id }) => id === process.id).command, ['sleep', '1000']);
    await found.kill(9);
    assert.equal((await process.waitForExit()).signal, 9);
    assert.equal(await getProcess('no-such'), null);
  },
  'a kill ends the whole tree, and another signal reaches the command': async () => {
    const tree = await exec([
      'sh',
      '-c',
      `setsid sh -c "sleep 1000 & echo \\$! > ${directory}/daemon; wait" & (sleep 1001 & echo $! > ${directory}/grand); sleep 1002`,
    ]);
    await until('the tree runs', () => read('daemon') && read('grand'));
    assert.ok(alive(tree.pid) && alive(read('daemon')) && alive(read('grand')));
    await tree.kill();
    assert.deepEqual([tree.pid, read('daemon'), read('grand')].filter(alive), []);
    // The shell may see the end of its last command before its own signal.
    assert.equal(await tree.exitCode, 143);
    await tree.kill();
    const traps = await exec(['sh', '-c', 'trap "echo caught; exit 7" USR1; echo ready; while :; do sleep 0.01; done']);
    await traps.waitForLog('ready');
    await traps.kill(10);
    assert.equal(await traps.exitCode, 7);
    assert.equal((await traps.output({ encoding: 'utf8' })).stdout, 'ready\ncaught\n');
  },
  'a time limit ends a process with all that it started': async () => {
    const process = await exec(['sh', '-c', `sleep 1000 & echo $! > ${directory}/limited; wait`], { timeout: 300 });
    assert.equal((await process.waitForExit()).timedOut, true);
    assert.deepEqual([process.pid, read('limited')].filter(alive), []);
  },
  'what cannot start is told': async () => {
    const missing = await fails(exec(['/no/such/program']), 'PROCESS_SPAWN_FAILED');
    assert.match(missing.message, /no such program/);
    await fails(exec(['true'], { cwd: '/no/such/place' }), 'INVALID_PROCESS_CWD');
    await fails(exec(['true'], { env: { 'A=B': '' } }), 'INVALID_PROCESS_ENVIRONMENT');
  },
  'a wait that its user gives up ends nothing': async () => {
    const process = await exec(['sleep', '1000']);
    await fails(process.waitForExit({ timeout: 100 }), 'PROCESS_WAIT_TIMEOUT');
    const stop = new AbortController();
    const reading = collect(await process.logs({ follow: true, signal: stop.signal }));
    stop.abort();
    await assert.rejects(reading);
    assert.equal((await process.status()).state, 'running');
    await process.kill();
  },
  'a port is waited for until it answers, or its process has ended': async () => {
    const script = `require("net").createServer((socket) => socket.end()).listen(0, "127.0.0.1", function () { console.log(this.address().port); })`;
    const server = await exec([process.execPath, '-e', script]);
    const { text } = await server.waitForLog(/^\d+\n/);
    await server.waitForPort(Number(text), { interval: 100, timeout: 20_000 });
    const other = await exec(['sh', '-c', 'exit 4']);
    await fails(other.waitForPort(1, { interval: 100, timeout: 20_000 }), 'PROCESS_EXITED_BEFORE_READY');
    await server.kill();
  },
  'a terminal shows what runs in it, and hears what is typed': async () => {
    const terminal = await sandbox.createTerminal({
      command: ['bash', '--norc'],
      cwd: directory,
      env: { PS1: '> ', COLOUR: 'blue' },
      cols: 91,
      rows: 17,
    });
    const snapshot = await terminal.getSnapshot();
    const { id, pid } = snapshot;
    assert.deepEqual([snapshot.status, snapshot.command, snapshot.cwd], ['running', ['bash', '--norc'], directory]);
    const output = (await terminal.output({ replay: true, follow: true })).getReader();
    await showUntil(output, '> ');
    // What is typed reaches the command that prints this: bash has given it the terminal.
    await terminal.write(Buffer.from(`sh -c 'echo $COLOUR-$(stty size)-é; exec sleep 1000'\n`));
    const { cursor } = await showUntil(output, 'blue-17 91-é');
    await terminal.interrupt();
    await showUntil(output, '> ');
    await terminal.write(Buffer.from(`sh -c 'trap "stty size; exit" WINCH; echo ar""med; while :; do sleep 0.01; done'\n`));
    await showUntil(output, 'armed');
    await terminal.resize(40, 10);
    await showUntil(output, /10 40[^]*> /);
    await terminal.write(Buffer.from('setsid sh -c "echo pid \\$\\$.; exec sleep 1000" &\n'));
    const [, daemon] = (await showUntil(output, /pid (\d+)\./)).text.match(/pid (\d+)\./);
    assert.ok(alive(pid) && alive(daemon));
    const again = (await (await makeSandbox(stored).getTerminal(id)).output({ since: cursor })).getReader();
    await showUntil(again, '10 40');
    await again.cancel();
    assert.ok((await sandbox.listTerminals()).some((one) => one.id === id));
    assert.ok(!(await listProcesses()).some((process) => process.id === id));
    await terminal.terminate();
    assert.deepEqual([pid, daemon].filter(alive), []);
    const events = await rest(output);
    assert.deepEqual([events.at(-1).type, events.at(-1).state, events.at(-1).terminalId], ['terminal', 'exited', id]);
    assert.equal((await terminal.getSnapshot()).status, 'exited');
    await fails(terminal.write(Buffer.from('x')), 'TERMINAL_CONTROL_ERROR');
    await terminal.terminate();
  },
  'a terminal whose command ends has its code': async () => {
    const terminal = await sandbox.createTerminal({ command: ['sh', '-c', 'exit 5'] });
    assert.deepEqual(await terminal.waitForExit(), { code: 5, timedOut: false });
    assert.equal(await sandbox.getTerminal('no-such'), null);
    await fails(terminal.output({ since: 'x' }), 'INVALID_TERMINAL_CURSOR');
    await fails(sandbox.createTerminal({ command: ['sh'], cwd: '/no/such' }), 'INVALID_TERMINAL_CWD');
    await fails(sandbox.createTerminal({ command: ['/no/such'] }), 'TERMINAL_CONTROL_ERROR');
    await fails(sandbox.createTerminal({ command: [] }), 'INVALID_COMMAND');
  },
  'a terminal is shown over a socket, from a cursor': async () => {
    const terminal = await sandbox.createTerminal({ command: ['sh', '-c', 'echo one; read word; echo "<$word>"; stty size; exit 6'] });
    const all = { replay: true, follow: true };
    const { cursor } = await showUntil((await terminal.output(all)).getReader(), 'one');
    // `terminal.connect()` needs upgrades of the platform: these are the messages of the client's addon for xterm.
    const connect = async (query) => {
      const path = `/ws/terminal?${new URLSearchParams({ terminalId: terminal.id, ...query })}`;
      const { webSocket } = await open(`${baseUrl.replace(/^http/, 'ws')}${path}`);
      assert.ok(webSocket, path);
      webSocket.binaryType = 'arraybuffer';
      const messages = [];
      const closed = new Promise((resolve) => webSocket.addEventListener('close', resolve));
      webSocket.addEventListener('message', ({ data }) =>
        messages.push(typeof data === 'string' ? JSON.parse(data) : Buffer.from(data).toString()),
      );
      return { webSocket, messages, closed };
    };
    const first = await connect({ cols: '44', rows: '11' });
    await until('the client is ready', () => first.messages.some(({ type }) => type === 'ready'));
    assert.deepEqual(first.messages.map((one) => one.type ?? one).slice(0, 3), ['chunk', 'one\r\n', 'ready']);
    const { runtimeIncarnationID } = stored.get('currentRuntimeIdentity');
    const second = await connect({ cursor, runtimeIncarnationID });
    await until('the client is ready', () => second.messages.length > 0);
    assert.deepEqual(second.messages[0], { type: 'ready', cursor });
    first.webSocket.send(JSON.stringify({ type: 'resize', cols: 50, rows: 12 }));
    first.webSocket.send(Buffer.from('word\n'));
    await first.closed;
    await second.closed;
    for (const { messages } of [first, second]) {
      assert.match(messages.filter((one) => typeof one === 'string').join(''), /<word>\r\n/);
      assert.deepEqual([messages.at(-1).type, messages.at(-1).exit], ['exit', { code: 6, timedOut: false }]);
      for (const [at, one] of messages.entries()) {
        if (one.type === 'chunk') assert.equal(Buffer.from(messages[at + 1]).length, one.byteLength);
      }
    }
    const late = await connect({});
    await late.closed;
    assert.equal(late.messages.at(-1).exit.code, 6);
    for (const query of [{ runtimeIncarnationID: 'x' }, { cursor: 'x' }, { terminalId: 'no-such' }]) {
      const path = `/ws/terminal?${new URLSearchParams({ terminalId: terminal.id, ...query })}`;
      assert.equal((await open(`${baseUrl.replace(/^http/, 'ws')}${path}`)).status, 502);
    }
  },
  'changes of files are watched, and asked for': async () => {
    const path = `${directory}/watched`;
    await sandbox.mkdir(path);
    const stream = await sandbox.watch(path, { include: ['*.ts'] });
    await sandbox.writeFile(`${path}/a.ts`, 'text');
    const all = [];
    for await (const event of parseSSEStream(stream)) {
      all.push(event);
      if (event.eventType === 'modify') break;
    }
    assert.deepEqual(
      all.map(({ type, eventType }) => [type, eventType]),
      [['watching', undefined], ['event', 'create'], ['event', 'modify']],
    );
    const first = await sandbox.checkChanges(path);
    await sandbox.writeFile(`${path}/b.ts`, 'text');
    assert.equal((await sandbox.checkChanges(path, { since: first.version })).status, 'changed');
    await fails(sandbox.watch(`${directory}/missing`), 'FILE_NOT_FOUND');
  },
  'a directory is kept in an archive, and restored': async () => {
    const [dir, archivePath] = [`${directory}/kept`, `${directory}/archives/kept.tar`];
    await sandbox.mkdir(dir);
    await sandbox.writeFile(`${dir}/a.txt`, 'text');
    // Without a bucket, the public methods of the class do not get so far.
    const backup = (call) => sandbox.runtimeRunner.runWaking('backup', ({ control }) => call(control.backup));
    const { sizeBytes } = await backup((api) => api.createArchive(dir, archivePath, { compression: { format: 'gzip' } }));
    assert.ok(sizeBytes > 0);
    const prepare = (path) => backup((api) => api.prepareRestore({ dir, backupId: 'x', archivePath: path }));
    assert.deepEqual([(await prepare(archivePath)).existingSize, (await prepare('/no/such')).existingSize], [sizeBytes, 0]);
    await sandbox.writeFile(`${dir}/b.txt`, 'text');
    await backup((api) => api.extractArchive(dir, archivePath));
    assert.deepEqual((await sandbox.listFiles(dir)).files.map(({ name }) => name), ['a.txt']);
    await backup((api) => api.cleanupArchive(archivePath));
    await backup((api) => api.cleanupArchive(archivePath));
    assert.equal((await sandbox.exists(archivePath)).exists, false);
    await fails(backup((api) => api.uploadArchive({ archivePath, url: 'x', timeoutMs: 1 })), 'BACKUP_CREATE_FAILED');
    await fails(backup((api) => api.downloadArchive({})), 'UNKNOWN_ERROR');
  },
  'a subscription that is given up holds nothing': async () => {
    const path = `${directory}/watched`;
    // The server has 32 watches for a tenant.
    for (let count = 0; count < 100; count += 1) {
      await (await sandbox.watch(path)).cancel();
    }
    // One that cannot be had, neither. A session can have 4,096 of them.
    await sandbox.runtimeRunner.runWaking('watch', async ({ control }) => {
      for (let count = 0; count < 4200; count += 1) await fails(control.watch.watch({ path: '' }), 'VALIDATION_FAILED');
    });
  },
  'what is not served is refused with its name': async () => {
    const error = await fails(sandbox.cleanupMountDirectory('/mnt'), 'UNKNOWN_ERROR');
    assert.match(error.message, /mounts\.removeMountDirectory/);
  },
};

await runAll(checks, print);
