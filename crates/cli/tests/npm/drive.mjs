// Drives a server with one of the published clients: each method for the routes that penfold serves, errors included.
//
//   node --import ./hooks.mjs drive.mjs CLIENT BASE_URL DIRECTORY [TRANSPORT]
//
// CLIENT is an alias of package.json; DIRECTORY is an empty one that both sides see; TRANSPORT is `http`, `websocket` or `rpc`. Prints
// a line for each check, and exits with 1 if one failed.
import assert from 'node:assert/strict';
import { alive, runAll, textOf, until } from './checks.mjs';

const [alias, baseUrl, directory, transport = 'http'] = process.argv.slice(2);
const { Sandbox, SandboxClient, parseSSEStream, streamFile } = await import(alias);
const socket = { transportMode: 'websocket', wsUrl: `${baseUrl.replace(/^http/, 'ws')}/ws` };
const isRpc = transport === 'rpc';
const client = isRpc
  ? (await import('./rpc.mjs')).rpcClient(Sandbox, baseUrl)
  : new SandboxClient({ baseUrl, ...(transport === 'websocket' ? socket : {}) });
const { commands, processes, files, utils } = client;
const version = alias.replace('client-', '');
const session = `npm-${version}`;

const events = async (stream) => {
  const all = [];
  for await (const event of parseSSEStream(stream)) all.push(event);
  return all;
};
const text = (all, type) => all.filter((event) => event.type === type).map((event) => event.data).join('');
const fails = async (promise, code, status) => {
  const error = await promise.then(
    () => assert.fail(`it succeeded instead of failing with ${code}`),
    (error) => error,
  );
  // Over a WebSocket, the clients put the answer to a stream into the message.
  const answer = error.message.match(/^Stream error: \d+ - (.*)$/);
  const told = error.errorResponse ?? (answer ? JSON.parse(answer[1]) : {});
  assert.equal(error.code ?? told.code, code, error.stack);
  assert.equal(error.httpStatus ?? told.httpStatus, status);
  return error;
};
const read = (file) => textOf(`${directory}/${file}`);

const checks = {
  'ping and version answer': async () => {
    assert.equal(await utils.ping(), isRpc ? 'healthy' : undefined);
    assert.match(await utils.getVersion(), /\S/);
  },
  'the list of commands is no endpoint': async () => {
    // As in the reference: over /rpc, the list is empty.
    if (isRpc) return assert.deepEqual(await utils.getCommands(), []);
    await fails(utils.getCommands(), 'UNKNOWN_ERROR', 500);
  },

  'a session is created once': async () => {
    const made = await utils.createSession({ id: session, cwd: directory, env: { COLOUR: 'blue' } });
    assert.equal(made.success, true);
    const error = await fails(utils.createSession({ id: session }), 'SESSION_ALREADY_EXISTS', 409);
    assert.equal(error.context?.sessionId ?? session, session);
  },
  'a command gives its output and its code': async () => {
    const done = await commands.execute('echo out; echo err >&2; (exit 3)', session);
    assert.deepEqual(
      [done.success, done.exitCode, done.stdout, done.stderr, done.command],
      [false, 3, 'out\n', 'err\n', 'echo out; echo err >&2; (exit 3)'],
    );
  },
  'output without a final newline stays without': async () => {
    assert.equal((await commands.execute('printf "a b"', session)).stdout, 'a b');
    assert.equal((await commands.execute('printf é€😀', session)).stdout, 'é€😀');
  },
  'environment and directory of the session hold': async () => {
    assert.equal((await commands.execute('echo $COLOUR $PWD', session)).stdout, `blue ${directory}\n`);
  },
  'a directory, variables, functions and aliases persist': async () => {
    await commands.execute('mkdir -p sub; cd sub; export A=1; B=2; f() { echo f$A$B; }; alias g="echo g"', session);
    assert.equal((await commands.execute('f; g; pwd', session)).stdout, `f12\ng\n${directory}/sub\n`);
    await commands.execute('cd ..', session);
  },
  'options of one command do not stay': async () => {
    const options = { env: { ONCE: 'yes' }, cwd: '/' };
    assert.equal((await commands.execute('echo $ONCE; pwd', session, options)).stdout, 'yes\n/\n');
    assert.equal((await commands.execute('echo "<$ONCE>"; pwd', session)).stdout, `<>\n${directory}\n`);
  },
  'a directory that is missing is an error of the command': async () => {
    const done = await commands.execute('pwd', session, { cwd: '/no/such/place' });
    assert.equal(done.exitCode, 1);
    assert.match(done.stderr, /Failed to change directory/);
  },
  'input is empty, heredocs work, quotes may be unbalanced': async () => {
    assert.equal((await commands.execute('cat; echo end', session)).stdout, 'end\n');
    assert.equal((await commands.execute('cat <<X\none\ntwo\nX', session)).stdout, 'one\ntwo\n');
    assert.notEqual((await commands.execute("echo 'open", session)).exitCode, 0);
    assert.equal((await commands.execute('echo usable', session)).stdout, 'usable\n');
  },
  'a time limit ends the command, and the session goes on': async () => {
    const command = `echo $BASHPID > ${directory}/shell; sleep 1000 & sleep 1001`;
    const error = await fails(
      commands.execute(command, session, { timeoutMs: 300 }),
      'COMMAND_EXECUTION_ERROR',
      500,
    );
    assert.match(error.message, /timeout after 300ms/i);
    assert.equal((await commands.execute('echo $A$B; jobs -r', session)).stdout, '12\n');
  },
  'a large output arrives whole': async () => {
    const done = await commands.execute('head -c 3000000 /dev/zero | tr "\\0" x', session);
    assert.equal(done.stdout.length, 3_000_000);
    assert.equal(done.stdout.replaceAll('x', ''), '');
  },
  'a stream of a command ends with its code': async () => {
    const all = await events(await commands.executeStream('echo one; echo two >&2; exit 4', session));
    assert.equal(all[0].type, 'start');
    assert.equal(text(all, 'stdout'), 'one\n');
    assert.equal(text(all, 'stderr'), 'two\n');
    assert.deepEqual([all.at(-1).type, all.at(-1).exitCode], ['complete', 4]);
  },
  'an empty command is refused': () => fails(commands.executeStream('', session), 'INVALID_COMMAND', 400),
  'a shell that exits is told once': async () => {
    const other = `${session}-exits`;
    await utils.createSession({ id: other, cwd: directory });
    await fails(commands.execute('exit 7', other), 'SESSION_TERMINATED', 410);
    assert.equal((await commands.execute('echo again', other)).stdout, 'again\n');
    await utils.deleteSession(other);
  },
  'a command without a session has a shell of its own': async () => {
    const none = '__DISABLE_SESSION__';
    const done = await commands.execute('cd /; X=1; echo out; exit 5', none);
    assert.deepEqual([done.exitCode, done.stdout], [5, 'out\n']);
    assert.equal((await commands.execute('echo "<$X>"', none)).stdout, '<>\n');
    assert.equal((await commands.execute('sleep 1000', none, { timeoutMs: 300 })).exitCode, 124);
  },

  'a port is waited for until it answers, or its process has ended': async () => {
    const script = `require("net").createServer().listen(0, "127.0.0.1", function () { require("fs")
      .writeFileSync("${directory}/port", String(this.address().port)); })`.replaceAll('\n', ' ');
    const id = `web-${version}`;
    await processes.startProcess(`${process.execPath} -e '${script}'`, session, { processId: id });
    await until('the port is known', () => read('port') !== '');
    const watch = async (options) => (await events(await client.ports.watchPort(options))).at(-1);
    const port = Number(read('port'));
    assert.deepEqual((await watch({ port, mode: 'tcp', processId: id, interval: 100 })).type, 'ready');
    await processes.killProcess(id);
    const ended = await watch({ port, mode: 'http', path: '/', processId: id, interval: 100 });
    assert.deepEqual([ended.type, ended.exitCode], ['process_exited', 143]);
  },
  'a process runs, is listed, and ends with its code': async () => {
    const started = await processes.startProcess('echo hello; exit 0', session, { processId: `${session}-p1` });
    assert.equal(started.processId, `${session}-p1`);
    assert.ok(started.pid > 0);
    const all = await events(await processes.streamProcessLogs(started.processId));
    assert.equal(all[0].type, 'process_info');
    assert.equal(text(all, 'stdout'), 'hello\n');
    assert.deepEqual([all.at(-1).type, all.at(-1).exitCode], ['exit', 0]);
    const { process } = await processes.getProcess(started.processId);
    assert.deepEqual([process.id, process.status, process.exitCode], [started.processId, 'completed', 0]);
    const logs = await processes.getProcessLogs(started.processId);
    assert.deepEqual([logs.stdout, logs.stderr], ['hello\n', '']);
    const { processes: list } = await processes.listProcesses();
    assert.ok(list.some((one) => one.id === started.processId && one.status === 'completed'));
  },
  'status words tell how a process ended': async () => {
    for (const [command, status, exitCode] of [
      ['exit 0', 'completed', 0],
      ['exit 1', 'failed', 1],
      ['exit 130', 'failed', 130],
      ['exit 255', 'failed', 255],
      ['exit 137', 'killed', 137],
      ['exit 143', 'killed', 143],
    ]) {
      const { processId } = await processes.startProcess(command, session);
      const all = await events(await processes.streamProcessLogs(processId));
      assert.equal(all.at(-1).exitCode, exitCode);
      const { process } = await processes.getProcess(processId);
      assert.deepEqual([process.status, process.exitCode], [status, exitCode], command);
    }
  },
  'a second process of an id is refused': async () => {
    const id = `${session}-twice`;
    await processes.startProcess('sleep 1000', session, { processId: id });
    await assert.rejects(processes.startProcess('sleep 1000', session, { processId: id }));
    await processes.killProcess(id);
  },
  'a kill ends daemons, and is told': async () => {
    const id = `${session}-tree`;
    const command = 'setsid sh -c "sleep 1000 & echo \\$! > daemon; wait" & (sleep 1001 & echo $! > grand); sleep 1002';
    const { pid } = await processes.startProcess(command, session, { processId: id });
    await until('the tree runs', () => read('daemon') && read('grand'));
    assert.ok(alive(pid) && alive(read('daemon')) && alive(read('grand')));
    await processes.killProcess(id);
    assert.deepEqual([pid, read('daemon'), read('grand')].filter(alive), []);
    const { process } = await processes.getProcess(id);
    assert.deepEqual([process.status, process.exitCode], ['killed', 143]);
    await fails(processes.killProcess(id), 'COMMAND_NOT_FOUND', 404);
  },
  'an unknown process is not found': async () => {
    await fails(processes.getProcess('no-such'), 'PROCESS_NOT_FOUND', 404);
    await fails(processes.killProcess('no-such'), 'PROCESS_NOT_FOUND', 404);
    await fails(processes.getProcessLogs('no-such'), 'PROCESS_NOT_FOUND', 404);
    await fails(processes.streamProcessLogs('no-such'), 'PROCESS_NOT_FOUND', 404);
  },
  'all processes are killed at once': async () => {
    const started = await Promise.all([1, 2, 3].map(() => processes.startProcess('sleep 1000', session)));
    assert.ok(started.every(({ pid }) => alive(pid)));
    const { cleanedCount } = await processes.killAllProcesses();
    assert.equal(cleanedCount, 3);
    assert.deepEqual(started.map(({ pid }) => pid).filter(alive), []);
  },

  'files are written, read, listed, moved and deleted': async () => {
    const path = `${directory}/files`;
    await files.mkdir(path, session, { recursive: true });
    await files.writeFile(`${path}/a.txt`, 'café', session);
    const got = await files.readFile(`${path}/a.txt`, session);
    assert.deepEqual([got.content, got.encoding, got.isBinary, got.size], ['café', 'utf-8', false, 5]);
    await files.writeFile(`${path}/b.bin`, Buffer.from([0, 255, 1]).toString('base64'), session, { encoding: 'base64' });
    const binary = await files.readFile(`${path}/b.bin`, session, { encoding: 'base64' });
    assert.deepEqual([...Buffer.from(binary.content, 'base64')], [0, 255, 1]);
    const listed = await files.listFiles(path, session);
    assert.deepEqual(listed.files.map(({ name, type }) => [name, type]).sort(), [['a.txt', 'file'], ['b.bin', 'file']]);
    await files.renameFile(`${path}/a.txt`, `${path}/c.txt`, session);
    await files.moveFile(`${path}/c.txt`, `${path}/d.txt`, session);
    if (files.exists) {
      assert.equal((await files.exists(`${path}/d.txt`, session)).exists, true);
      assert.equal((await files.exists(`${path}/a.txt`, session)).exists, false);
    }
    let streamed = '';
    for await (const part of streamFile(await files.readFileStream(`${path}/d.txt`, session))) {
      streamed += typeof part === 'string' ? part : Buffer.from(part).toString();
    }
    assert.equal(streamed, 'café');
    if (isRpc) {
      const parts = [Uint8Array.of(0, 255), Uint8Array.of(1)];
      const source = new ReadableStream({ pull: (to) => (parts.length ? to.enqueue(parts.shift()) : to.close()) });
      assert.equal((await files.writeFileStream(`${path}/e.bin`, source, session)).bytesWritten, 3);
      const bytes = await files.readFile(`${path}/e.bin`, session, { encoding: 'none' });
      const got = new Uint8Array(await new Response(bytes.content).arrayBuffer());
      assert.deepEqual([...got], [0, 255, 1]);
    }
    await files.deleteFile(`${path}/d.txt`, session);
    await fails(files.readFile(`${path}/d.txt`, session), 'FILE_NOT_FOUND', 404);
    await fails(files.deleteFile(path, session), 'IS_DIRECTORY', 400);
    await fails(files.listFiles(`${path}/b.bin`, session), 'NOT_DIRECTORY', 400);
  },

  'a backup and its restore': async () => {
    const [dir, archive] = [`${directory}/kept`, `${directory}/archive`];
    await files.mkdir(dir, session);
    await files.writeFile(`${dir}/a`, 'one', session);
    await files.writeFile(`${dir}/b.log`, '', session);
    const old = ['0.7', '0.8'].includes(version);
    const made = await client.backup.createArchive(
      ...[dir, archive, session, ...(old ? [false, ['*.log']] : [{ excludes: ['*.log'] }])],
    );
    assert.deepEqual([made.success, made.archivePath], [true, archive]);
    assert.ok(made.sizeBytes > 0);
    await files.writeFile(`${dir}/a`, 'two', session);
    assert.equal((await client.backup.restoreArchive(dir, archive, session)).dir, dir);
    assert.equal(read('kept/a'), 'one');
    assert.equal((await files.exists(`${dir}/b.log`, session)).exists, false);
    const wrong = client.backup.restoreArchive('relative', archive, session);
    await fails(wrong, 'INVALID_BACKUP_CONFIG', 400);
  },
  'code runs in contexts, which keep its state': async () => {
    const { interpreter } = client;
    const context = await interpreter.createCodeContext({ language: 'python', cwd: directory });
    assert.deepEqual([context.language, context.cwd], ['python', directory]);
    assert.ok(context.createdAt instanceof Date);
    const run = async (id, code, language) => {
      const heard = { stdout: '', stderr: '', results: [], error: undefined };
      await interpreter.runCodeStream(id, code, language, {
        onStdout: ({ text, timestamp }) => {
          assert.equal(typeof timestamp, 'number');
          heard.stdout += text;
        },
        onStderr: ({ text }) => void (heard.stderr += text),
        onResult: (result) => void heard.results.push(result),
        onError: (error) => void (heard.error = error),
      });
      return heard;
    };
    const first = await run(context.id, 'import os, sys\nx = 1\nprint(os.getcwd())\nprint("é", file=sys.stderr)');
    assert.deepEqual(first, { stdout: `${directory}\n`, stderr: 'é\n', results: [], error: undefined });
    assert.equal((await run(context.id, 'x + 1')).results[0].text, '2');
    assert.deepEqual((await run(context.id, '[x]')).results[0].json, [1]);
    const { error } = await run(context.id, 'nothing');
    assert.deepEqual([error.name, error.message], ['NameError', "name 'nothing' is not defined"]);
    assert.ok(error.traceback.length > 1);
    const other = await interpreter.createCodeContext({ language: 'javascript' });
    await run(other.id, 'const a = await Promise.resolve(10)');
    assert.equal((await run(other.id, 'a + 1', 'javascript')).results[0].text, '11');
    const listed = await interpreter.listCodeContexts();
    assert.deepEqual(listed.map(({ id }) => id), [context.id, other.id]);
    // The client decodes each part by itself.
    const long = await run(context.id, 'for _ in range(2000): print("é€😀" * 20)');
    assert.equal(long.stdout, `${'é€😀'.repeat(20)}\n`.repeat(2000));
    await interpreter.deleteCodeContext(context.id);
    assert.deepEqual((await interpreter.listCodeContexts()).map(({ id }) => id), [other.id]);
    await fails(interpreter.deleteCodeContext(context.id), 'CONTEXT_NOT_FOUND', 404);
    await fails(run(context.id, '1'), 'CONTEXT_NOT_FOUND', 404);
    await fails(interpreter.createCodeContext({ language: 'ruby' }), 'VALIDATION_FAILED', 400);
    const exited = await run(other.id, 'process.exit(3)');
    assert.equal(exited.error.name, 'InterpreterEnded');
    await fails(run(other.id, '1'), 'INTERNAL_ERROR', 500);
    const chunks = await new Response(await interpreter.streamCode(undefined, '"default"')).text();
    assert.match(chunks, /'default'/);
    await interpreter.deleteCodeContext(other.id);
  },

  'changes of files are watched, and asked for': async () => {
    if (!client.watch) return;
    const path = `${directory}/watched`;
    await files.mkdir(path, session);
    const stop = new AbortController();
    const stream = await client.watch.watch({ path, include: ['*.ts'], sessionId: session });
    await files.writeFile(`${path}/a.js`, '', session);
    await files.writeFile(`${path}/a.ts`, 'text', session);
    const all = [];
    for await (const event of parseSSEStream(stream, stop.signal)) {
      all.push(event);
      if (event.eventType === 'modify') break;
    }
    assert.deepEqual(
      all.map(({ type, eventType, path, isDirectory }) => [type, eventType, path, isDirectory]),
      [
        ['watching', undefined, path, undefined],
        ['event', 'create', `${path}/a.ts`, false],
        ['event', 'modify', `${path}/a.ts`, false],
      ],
    );
    await fails(client.watch.watch({ path: `${directory}/missing` }), 'FILE_NOT_FOUND', 404);
    await fails(client.watch.watch({ path, include: ['{a,b}'] }), 'VALIDATION_FAILED', 400);
    if (!client.watch.checkChanges) return;
    const first = await client.watch.checkChanges({ path, sessionId: session });
    assert.match(first.version, /^watch-\d+-\d+:0$/);
    await files.writeFile(`${path}/b.ts`, 'text', session);
    const second = await client.watch.checkChanges({ path, since: first.version, sessionId: session });
    assert.deepEqual([first.status, second.status], ['unchanged', 'changed']);
    const third = await client.watch.checkChanges({ path, since: second.version, sessionId: session });
    assert.deepEqual([third.status, third.version], ['unchanged', second.version]);
    const other = await client.watch.checkChanges({ path, since: 'watch-1-1:0', sessionId: session });
    assert.deepEqual([other.status, other.reason], ['resync', 'restarted']);
  },
  'no port gets a public address': async () => {
    // The stub of RPC has any name.
    if (transport === 'rpc' || !client.ports.exposePort) return;
    const error = await fails(client.ports.exposePort(8080, session), 'PORT_OPERATION_ERROR', 501);
    assert.match(error.message, /no public addresses/);
    assert.deepEqual((await client.ports.getExposedPorts(session)).ports, []);
    await fails(client.ports.unexposePort(8080, session), 'PORT_NOT_EXPOSED', 404);
  },

  'a session is deleted with all that it started': async () => {
    await commands.execute('sleep 1000 & echo $! > job', session);
    const { pid } = await processes.startProcess('sleep 1000', session);
    assert.ok(alive(read('job')) && alive(pid));
    await utils.deleteSession(session);
    assert.deepEqual([read('job'), pid].filter(alive), []);
    await fails(utils.deleteSession(session), 'INTERNAL_ERROR', 500);
  },
};

await runAll(checks);
