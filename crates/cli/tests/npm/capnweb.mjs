// Calls a server over /rpc with the reference implementation of Cap'n Web, and with messages that no client sends.
//
//   node --experimental-websocket capnweb.mjs BASE_URL DIRECTORY
//
// DIRECTORY is an empty one that both sides see. Prints a line for each check, and exits with 1 if one failed.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { RpcSession } from 'capnweb';
import { runAll, until } from './checks.mjs';

const [baseUrl, directory] = process.argv.slice(2);
const url = `${baseUrl.replace(/^http/, 'ws')}/rpc`;

/** Opens a socket. */
const open = () =>
  new Promise((resolve, reject) => {
    const socket = new WebSocket(url);
    socket.addEventListener('open', () => resolve(socket));
    socket.addEventListener('error', reject);
  });

/** A transport for the session: counts what is sent and received. */
class Transport {
  sent = [];
  received = 0;
  #waiting = [];
  #wanted = [];
  constructor(socket) {
    this.socket = socket;
    socket.addEventListener('message', ({ data }) => {
      this.received += data.length;
      const wanted = this.#wanted.shift();
      if (wanted) wanted.resolve(data);
      else this.#waiting.push(data);
    });
    socket.addEventListener('close', ({ code, reason }) => {
      this.error = new Error(`closed: ${code} ${reason}`);
      for (const wanted of this.#wanted) wanted.reject(this.error);
    });
  }
  async send(message) {
    this.sent.push(message);
    this.socket.send(message);
  }
  async receive() {
    if (this.#waiting.length) return this.#waiting.shift();
    if (this.error) throw this.error;
    return new Promise((resolve, reject) => this.#wanted.push({ resolve, reject }));
  }
}
const connect = async (localMain) => {
  const socket = await open();
  const transport = new Transport(socket);
  const session = new RpcSession(transport, localMain);
  const idle = () => {
    const { imports, exports } = session.getStats();
    return imports === 1 && exports === 1;
  };
  return { socket, transport, idle, stub: session.getRemoteMain() };
};
const rejected = (promise) =>
  promise.then(
    () => assert.fail('it succeeded'),
    (error) => error,
  );
const bytes = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
};
const output = (events) =>
  events
    .toString()
    .split('\n\n')
    .filter((event) => event.startsWith('data: '))
    .map((event) => JSON.parse(event.slice(6)))
    .filter(({ type }) => type === 'stdout')
    .map(({ data }) => data)
    .join('');
const digest = (content) => createHash('sha256').update(content).digest('hex');

/** Sends messages on a socket of their own; returns the messages and the code with which the server ended it. */
const answers = async (messages) => {
  const socket = await open();
  const received = [];
  socket.addEventListener('message', ({ data }) => received.push(data));
  const ended = new Promise((resolve) => socket.addEventListener('close', ({ code }) => resolve(code)));
  for (const message of messages) socket.send(message);
  return { received, code: await ended };
};

const { stub, transport } = await connect();
const sessionId = 'capnweb';
await stub.utils.createSession({ id: sessionId, cwd: directory });

/** Makes a check that has a session of its own, in which nothing may be left. */
const alone = (check) => async () => {
  const own = await connect();
  await check(own);
  await until('all is released', own.idle);
  own.socket.close();
};

const checks = {
  'calls of one turn are one round trip': async () => {
    const before = transport.sent.length;
    // The second call refers to the result of the first, which is not there yet.
    const made = stub.commands.execute('echo -n text', sessionId);
    const written = stub.files.writeFile(`${directory}/pipelined`, made.stdout, sessionId);
    const length = written.bytesWritten;
    assert.equal(transport.sent.length - before, 2);
    assert.equal(await length, 4);
    assert.equal((await written).success, true);
    assert.equal(readFileSync(`${directory}/pipelined`, 'utf8'), 'text');
  },
  'a group of methods is an object': alone(async ({ stub }) => {
    const utils = await stub.utils;
    assert.equal(await utils.ping(), 'healthy');
    utils[Symbol.dispose]();
  }),
  'lists and nothing arrive as they are': async () => {
    const { files } = await stub.files.listFiles(directory, sessionId);
    assert.ok(Array.isArray(files) && files.length > 0);
    assert.deepEqual(await stub.utils.getCommands(), []);
    assert.equal(await stub.utils.ping().nothing, undefined);
  },
  'an error has its code and its details': async () => {
    const error = await rejected(stub.files.readFile('/no/such/file', sessionId));
    assert.ok(error instanceof Error);
    assert.equal(error.code, 'FILE_NOT_FOUND');
    assert.equal(error.details.path, '/no/such/file');
    assert.match(error.message, /no such file/i);
  },
  'the error of a result is that of all that uses it': async () => {
    const missing = stub.files.readFile('/no/such/file', sessionId);
    const error = await rejected(stub.files.writeFile(`${directory}/never`, missing.content, sessionId));
    assert.equal(error.code, 'FILE_NOT_FOUND');
    await rejected(missing);
  },
  'a method that does not exist is an error': async () => {
    for (const call of [stub.nothing(), stub.files.nothing(), stub.files(), stub.utils.ping().nothing()]) {
      assert.match((await rejected(call)).message, /is not a function/);
    }
    const refused = [
      [stub.tunnels.listTunnels(), 'UNKNOWN_ERROR'],
      [stub.backup.uploadParts({ parts: [] }), 'BACKUP_CREATE_FAILED'],
    ];
    for (const [call, code] of refused) {
      assert.equal((await rejected(call)).code, code);
    }
  },
  'functions of the client hear what code writes': alone(async ({ stub }) => {
    const context = await stub.interpreter.createCodeContext({ language: 'python', envVars: { COLOUR: 'blue' } });
    assert.ok(context.createdAt instanceof Date && context.lastUsed instanceof Date);
    const run = async (code, more = {}, ms) => {
      const heard = [];
      const hear = (name) => (value) => void heard.push([name, value.text ?? value.json ?? value.name]);
      const names = ['onStdout', 'onStderr', 'onResult', 'onError'];
      const functions = Object.fromEntries(names.map((name) => [name, hear(name)]));
      const done = await stub.interpreter.runCodeStream(context.id, code, undefined, { ...functions, ...more }, ms);
      assert.equal(done, undefined);
      return heard;
    };
    assert.deepEqual(await run('import os\nprint(os.environ["COLOUR"])\n[1, [2]]'), [
      ['onStdout', 'blue\n'],
      ['onResult', [1, [2]]],
    ]);
    assert.deepEqual(await run('1/0'), [['onError', 'ZeroDivisionError']]);
    assert.deepEqual(await run('while True: pass', {}, 200), [['onError', 'TimeoutError']]);
    // Each waits for the one before it.
    let calls = 0;
    const slow = async () => {
      calls += 1;
      assert.equal(calls, 1);
      await new Promise((resolve) => setTimeout(resolve, 5));
      calls -= 1;
    };
    await run('display(*range(20))', { onResult: slow });
    await rejected(run('1', { onResult: () => { throw new Error('no'); } }));
    const error = await rejected(stub.interpreter.runCodeStream('none', '1', 'python', { onStdout: () => {} }));
    assert.equal(error.code, 'CONTEXT_NOT_FOUND');
    const stream = await bytes(await stub.interpreter.streamCode(context.id, 'print("out")'));
    assert.match(stream.toString(), /"text":"out\\n"/);
    const [{ id, language, createdAt }, ...others] = await stub.interpreter.listCodeContexts();
    assert.deepEqual([id, language, others], [context.id, 'python', []]);
    assert.ok(createdAt instanceof Date);
    assert.equal(await stub.interpreter.deleteCodeContext(id), undefined);
  }),
  'two hundred calls at once': alone(async ({ stub }) => {
    const all = [...Array(200).keys()].map((n) => stub.files.writeFile(`${directory}/n${n}`, `${n}`, sessionId));
    assert.ok((await Promise.all(all)).every(({ success }) => success));
    const read = [...Array(200).keys()].map((n) => stub.files.readFile(`${directory}/n${n}`, sessionId));
    assert.deepEqual((await Promise.all(read)).map(({ content }) => content), [...Array(200).keys()].map(String));
  }),
  'more calls than run at one time': async () => {
    const all = [...Array(2000).keys()].map(() => stub.utils.ping());
    assert.ok((await Promise.all(all)).every((answer) => answer === 'healthy'));
  },
  'a stream ends with the command': alone(async ({ stub }) => {
    const stream = await stub.commands.executeStream('seq 1 200000', sessionId);
    const text = output(await bytes(stream));
    assert.equal(text.length, [...Array(200_000).keys()].map((n) => `${n + 1}\n`).join('').length);
    assert.ok(text.startsWith('1\n2\n') && text.endsWith('199999\n200000\n'));
  }),
  'a reader that pauses stops only its own stream': async () => {
    const stream = await stub.commands.executeStream('seq 1 600000; echo end', sessionId);
    const reader = stream.getReader();
    const first = await reader.read();
    let before = -1;
    await until('nothing more comes', async () => {
      const calls = [...Array(20).keys()].map(() => stub.utils.ping());
      await Promise.all(calls);
      const now = transport.received;
      const stands = now - before < 4096;
      before = now;
      return stands;
    });
    assert.ok(transport.received < 40_000_000);
    const again = await stub.commands.executeStream('seq 1 50000', sessionId);
    assert.ok(output(await bytes(again)).endsWith('49999\n50000\n'));
    reader.releaseLock();
    const rest = await bytes(stream);
    assert.ok(output(Buffer.concat([first.value, rest])).endsWith('599999\n600000\nend\n'));
  },
  'a stream that is cancelled is released, and the command goes on': alone(async ({ stub, idle }) => {
    const id = 'capnweb-endless';
    await stub.processes.startProcess('while :; do echo x; read -t 0.02 </dev/zero; done', sessionId, { processId: id });
    const stream = await stub.processes.streamProcessLogs(id);
    const reader = stream.getReader();
    await reader.read();
    await reader.cancel();
    await until('it is released', idle);
    assert.equal((await stub.processes.getProcess(id)).process.status, 'running');
    await stub.processes.killProcess(id);
  }),
  'a file of bytes is written and read as a stream': alone(async ({ stub }) => {
    const content = Buffer.alloc(20_000_000, 'penfold \x00\xff');
    const source = new Blob([content]).stream();
    const written = await stub.files.writeFileStream(`${directory}/bytes`, source, sessionId);
    assert.deepEqual([written.success, written.bytesWritten], [true, content.length]);
    assert.equal(digest(readFileSync(`${directory}/bytes`)), digest(content));
    const read = await stub.files.readFile(`${directory}/bytes`, sessionId, { encoding: 'none' });
    assert.deepEqual([read.success, read.size, read.path], [true, content.length, `${directory}/bytes`]);
    assert.equal(read.mimeType, 'application/octet-stream');
    assert.equal(digest(await bytes(read.content)), digest(content));
  }),
  'a stream that cannot be written is an error for both': alone(async ({ stub }) => {
    const source = new Blob([Buffer.alloc(5_000_000)]).stream();
    const error = await rejected(stub.files.writeFileStream(directory, source, sessionId));
    assert.equal(error.code, 'IS_DIRECTORY');
    const broken = new ReadableStream({ pull: (controller) => controller.error(new Error('the source failed')) });
    assert.match((await rejected(stub.files.writeFileStream(`${directory}/broken`, broken, sessionId))).message, /broke off/);
  }),
  'a result that is too large for a message is refused': async () => {
    writeFileSync(`${directory}/large`, 'x'.repeat(40_000_000));
    assert.equal((await rejected(stub.files.readFile(`${directory}/large`, sessionId))).code, 'FILE_TOO_LARGE');
  },

  'the end of a socket ends no process': async () => {
    const other = await connect();
    const id = 'capnweb-lives';
    await other.stub.processes.startProcess('sleep 1000', sessionId, { processId: id });
    const stream = await other.stub.processes.streamProcessLogs(id);
    await stream.getReader().read();
    const slow = rejected(other.stub.commands.execute('sleep 0.5; echo done > after', sessionId));
    await until('it runs', async () => (await stub.utils.ping()) && other.transport.sent.length > 3);
    other.socket.close();
    await slow;
    assert.equal((await stub.processes.getProcess(id)).process.status, 'running');
    await stub.processes.killProcess(id);
  },
  'garbage ends its own session only': async () => {
    const push = JSON.stringify(['push', ['pipeline', 0, ['files']]]);
    for (const messages of [
      ['no JSON'],
      ['{}'],
      ['["nothing"]'],
      ['["pull",1]'],
      ['["release",1,1]'],
      ['["release",0,1]', '["push",["pipeline",0,["utils","ping"],[]]]'],
      ['["push",["pipeline",7,["x"],[]]]'],
      [`["push",${'['.repeat(50_000)}${']'.repeat(50_000)}]`],
      [`["push",[[${'0,'.repeat(1_000_000)}0]]]`],
      [Buffer.from('bytes')],
      Array(5000).fill(push),
      ['["pipe"]', ...Array(100).fill(`["stream",["pipeline",1,["write"],[["bytes","${'A'.repeat(80_000)}"]]]]`)],
    ]) {
      const { received, code } = await answers(messages);
      const shown = String(messages[0]).slice(0, 60);
      assert.equal(code, 1002, shown);
      assert.equal(JSON.parse(received.at(-1))[0], 'abort', shown);
    }
    assert.equal(await stub.utils.ping(), 'healthy');
  },
  'what is not served fails alone': async () => {
    const other = await connect();
    const error = await rejected(other.stub.utils.createSession(new Headers({ a: 'b' })));
    assert.match(error.message, /`headers`/);
    await rejected(other.stub.utils.ping().map((text) => text));
    assert.equal(await other.stub.utils.ping(), 'healthy');
    other.socket.close();
  },
};

await runAll(checks);
