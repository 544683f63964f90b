// Stands in for Cloudflare's platform, as `@cloudflare/containers` and `cloudflare:workers` show it: a container is a `penfold serve` in
// file systems of its own, a Durable Object is an object of this process.
import { execFile, spawn } from 'node:child_process';
import { timingSafeEqual } from 'node:crypto';
import { lstatSync, mkdirSync, openSync, readdirSync, readlinkSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { promisify } from 'node:util';
import WebSocket from 'ws';

/** What the script passes: the program, a directory for the state roots, that of the npm packages, and that of clones, if any. */
const { PENFOLD_TEST_PROGRAM: program, PENFOLD_TEST_WORK: work } = process.env;
const { PENFOLD_TEST_NPM: npm, PENFOLD_TEST_CLONES: clones } = process.env;

/** The port of the API in a container, for the client; each server has a port of its own. */
const API_PORT = 3000;
const TARGET_PORT = 'cf-container-target-port';

export class RpcTarget {}
export class DurableObject {}
export class WorkerEntrypoint {}
export class ContainerProxy {}
export const env = {};
export const tracing = undefined;

crypto.subtle.timingSafeEqual = timingSafeEqual;
// Node 20 has the class for an option only.
globalThis.WebSocket ??= WebSocket;

// Node refuses an answer with status 101, and knows no sockets in answers.
globalThis.Response = class extends Response {
  constructor(body, init = {}) {
    const upgrade = init.status === 101;
    super(body, upgrade ? { headers: init.headers } : init);
    if (upgrade) Object.defineProperty(this, 'status', { value: 101 });
    this.webSocket = init.webSocket ?? null;
  }
};

/** One end of a pair of sockets in this process; keeps events until it is accepted. */
class PairedSocket extends EventTarget {
  #kept = [];
  #accepted = false;
  readyState = 1;
  accept() {
    this.#accepted = true;
    for (const event of this.#kept.splice(0)) this.dispatchEvent(event);
  }
  deliver(type, fields) {
    const event = Object.assign(new Event(type), fields);
    if (this.#accepted) this.dispatchEvent(event);
    else this.#kept.push(event);
  }
  send(data) {
    this.peer.deliver('message', { data });
  }
  close(code = 1000, reason = '') {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.peer.deliver('close', { code, reason });
  }
}
globalThis.WebSocketPair = class {
  constructor() {
    [this[0], this[1]] = [new PairedSocket(), new PairedSocket()];
    [this[0].peer, this[1].peer] = [this[1], this[0]];
  }
};

export const switchPort = (request, port) => {
  const headers = new Headers(request.headers);
  headers.set(TARGET_PORT, String(port));
  return new Request(request, { headers });
};
export const getContainer = (namespace, name = 'container') => namespace.get(name);

/** The storage of a Durable Object. */
class Storage {
  #values = new Map();
  async get(key) {
    if (Array.isArray(key)) return new Map(key.filter((one) => this.#values.has(one)).map((one) => [one, this.#values.get(one)]));
    return structuredClone(this.#values.get(key));
  }
  async put(key, value) {
    const entries = typeof key === 'string' ? { [key]: value } : key;
    for (const [name, one] of Object.entries(entries)) this.#values.set(name, structuredClone(one));
  }
  async delete(key) {
    return [key].flat().filter((one) => this.#values.delete(one)).length > 0;
  }
  async list({ prefix = '' } = {}) {
    return new Map([...this.#values].filter(([key]) => key.startsWith(prefix)).sort());
  }
  transaction(act) {
    return act(this);
  }
}

const containers = new Set();

/** All objects of one class, by their names. A call waits until the constructor's work is done. */
export class Namespace {
  #stubs = new Map();
  #make;
  #hasPython;
  constructor(make, hasPython) {
    [this.#make, this.#hasPython] = [make, hasPython];
  }
  get(name) {
    if (!this.#stubs.has(name)) this.#stubs.set(name, this.#stub(name));
    return this.#stubs.get(name);
  }
  #stub(name) {
    let ready = Promise.resolve();
    const ctx = {
      id: { name, toString: () => name },
      storage: new Storage(),
      hasPython: this.#hasPython,
      blockConcurrencyWhile: (act) => (ready = ready.then(act)),
      waitUntil: () => {},
      abort: () => {},
    };
    const object = this.#make(ctx);
    containers.add(object);
    return remote(object, () => ready);
  }
}

/** Of an error, a caller of an object sees the name and the message. */
const seen = (error) => Object.assign(new Error(error.message), { name: error.name });
const hasFunctions = (value) =>
  Object.getPrototypeOf(value ?? 0) === Object.prototype && Object.values(value).some((one) => typeof one === 'function');

/** An object as its callers see it. Each call waits for `ready`, and begins in a turn of its own: no call begins while an earlier one uses
 * the storage, which answers within the turn. */
const remote = (object, ready) => {
  const call = (method) => async (...args) => {
    await ready();
    await new Promise(setImmediate);
    try {
      const result = await object[method](...args);
      return hasFunctions(result) ? remote(result, ready) : result;
    } catch (error) {
      throw seen(error);
    }
  };
  return new Proxy(object, {
    get: (_, property) => (typeof object[property] === 'function' ? call(property) : object[property]),
  });
};

/** Ends all containers, and waits until nothing of them is left. */
export const endContainers = () => Promise.all([...containers].map((container) => container.end('SIGTERM')));

const log = openSync(`${work}/servers.log`, 'a');
let lastServer = 0;

/** Replaces a program, so that execve(2) fails with ENOENT as for one that is missing. */
const missing = `${work}/missing`;
writeFileSync(missing, '#!/missing\n', { mode: 0o755 });

/** The programs of Python. */
const pythons = () => {
  const found = ['/usr/bin', '/usr/local/bin'].flatMap((directory) => readdirSync(directory).map((name) => `${directory}/${name}`));
  return found.filter((path) => /\/python[\d.]*$/.test(path) && lstatSync(path).isFile());
};

/** The command that starts a program in file systems of its own: those of the host without its data. */
const isolated = (state, variables, hasPython) => {
  const words = ['--die-with-parent', '--cap-add', 'ALL', '--ro-bind', '/usr', '/usr', '--ro-bind', '/etc', '/etc'];
  for (const directory of ['/bin', '/sbin', '/lib', '/lib64']) {
    const found = lstatSync(directory, { throwIfNoEntry: false });
    if (found?.isSymbolicLink()) words.push('--symlink', readlinkSync(directory), directory);
    else if (found) words.push('--ro-bind', directory, directory);
  }
  words.push('--proc', '/proc', '--dev', '/dev', '--ro-bind', '/sys', '/sys');
  words.push('--bind-try', '/sys/fs/cgroup', '/sys/fs/cgroup');
  for (const directory of ['/tmp', '/root', '/run', '/var/tmp']) words.push('--tmpfs', directory);
  words.push('--ro-bind', program, program, '--ro-bind', npm, npm, '--bind', state, state);
  if (!hasPython) for (const python of pythons()) words.push('--ro-bind', missing, python);
  words.push('--dir', '/workspace', '--chdir', '/workspace', '--clearenv');
  // Upstream's images set the version.
  const image = { PATH: `${npm}/node_modules/.bin:/usr/local/bin:/usr/bin:/bin`, HOME: '/root', SANDBOX_VERSION: '0.12.10' };
  const all = { ...image, TMPDIR: '/tmp', ...variables };
  if (clones) {
    words.push('--ro-bind', clones, clones);
    const key = `url.file://${clones}/.insteadOf`;
    Object.assign(all, { GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: key, GIT_CONFIG_VALUE_0: 'https://github.com/' });
  }
  for (const [name, value] of Object.entries(all)) words.push('--setenv', name, value);
  return words;
};

/** A server with a state root of its own. */
class Server {
  static async start(variables, hasPython) {
    const server = new Server();
    server.state = `${work}/state/${(lastServer += 1)}`;
    mkdirSync(server.state, { recursive: true, mode: 0o700 });
    const words = ['serve', '--api', 'cloudflare', '--insecure-no-token', '--listen', '127.0.0.1:0'];
    const inside = isolated(server.state, variables, hasPython);
    server.process = spawn('bwrap', [...inside, program, '--root', server.state, ...words], { stdio: ['ignore', 'ignore', 'pipe'] });
    server.ended = new Promise((resolve) => server.process.on('close', resolve));
    server.process.on('error', (error) => writeSync(log, `${error}\n`));
    server.port = await new Promise((resolve, reject) => {
      let said = '';
      server.process.stderr.on('data', (data) => {
        writeSync(log, data);
        said = `${said}${data}`.slice(-10_000);
        const found = /address"?[=:]"?127\.0\.0\.1:(\d+)/.exec(said);
        if (found) resolve(Number(found[1]));
      });
      server.ended.then(() => reject(new Error(`the server did not start: ${said}`)));
    });
    return server;
  }
  /** Ends the server, then all that its sandboxes started. */
  async end(signal) {
    this.process.kill(signal);
    await this.ended;
    await promisify(execFile)(program, ['--root', this.state, 'rm', '--all', '-f']).catch((error) => {
      if (error.code !== 1) writeSync(log, `${error}\n`);
    });
    rmSync(this.state, { recursive: true, force: true });
  }
}

/** Opens a socket to a port; it reads nothing before it is accepted. */
const openSocket = (request, port) =>
  new Promise((resolve) => {
    const { pathname, search } = new URL(request.url);
    const socket = new WebSocket(`ws://127.0.0.1:${port}${pathname}${search}`);
    socket.binaryType = 'arraybuffer';
    socket.accept = () => socket.resume();
    socket.once('open', () => {
      socket.pause();
      resolve(new Response(null, { status: 101, webSocket: socket }));
    });
    socket.once('unexpected-response', async (_, answer) => {
      const parts = await answer.toArray();
      resolve(new Response(Buffer.concat(parts), { status: answer.statusCode }));
    });
    socket.once('error', (error) => resolve(new Response(String(error), { status: 502 })));
  });
const isUpgrade = (request) => request.headers.get('upgrade')?.toLowerCase() === 'websocket';

/** Sends a request to a port of the loopback address. */
const send = async (request, port) => {
  if (isUpgrade(request)) return openSocket(request, port);
  const url = new URL(request.url);
  [url.protocol, url.hostname, url.port] = ['http:', '127.0.0.1', String(port)];
  const headers = new Headers(request.headers);
  for (const name of ['host', 'connection', 'keep-alive', 'transfer-encoding', TARGET_PORT]) headers.delete(name);
  const { method, body, signal } = request;
  const answer = await fetch(url, { method, headers, body, signal, redirect: 'manual', duplex: 'half' });
  // fetch() has removed the coding.
  const told = new Headers(answer.headers);
  told.delete('content-encoding');
  return new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers: told });
};

/** A number of milliseconds, from `10m`, `30s` or a number of seconds. */
const milliseconds = (text) => {
  const [, number, unit = 's'] = /^(\d+)([smh]?)$/.exec(String(text)) ?? [null, '600'];
  return Number(number) * { s: 1000, m: 60_000, h: 3_600_000, '': 1000 }[unit];
};

/** The base class of the client's `Sandbox`. */
export class Container {
  sleepAfter = '10m';
  envVars = {};
  inflightRequests = 0;
  #server;
  #starting;
  #status = 'stopped';
  #sleep;

  constructor(ctx, env) {
    [this.ctx, this.env] = [ctx, env];
    ctx.container = {
      running: false,
      getTcpPort: (port) => ({ fetch: (url, request) => send(new Request(url, request), this.#portOf(port)) }),
    };
  }
  #portOf(port) {
    return port === API_PORT ? this.#server.port : port;
  }

  async getState() {
    return { status: this.#status, lastChange: Date.now() };
  }
  startAndWaitForPorts() {
    if (this.#server) return Promise.resolve();
    this.#starting ??= this.#start().finally(() => (this.#starting = undefined));
    return this.#starting;
  }
  async #start() {
    this.#server = await Server.start(this.envVars, this.ctx.hasPython);
    this.ctx.container.running = true;
    this.#status = 'healthy';
    this.renewActivityTimeout();
    await this.onStart();
  }
  start() {
    return this.startAndWaitForPorts();
  }
  async stop() {
    await this.end('SIGTERM');
  }
  async destroy() {
    await this.end('SIGKILL');
  }
  /** Ends the server and its sandboxes. */
  async end(signal) {
    await this.#starting;
    const server = this.#server;
    if (!server) return;
    this.#server = undefined;
    clearTimeout(this.#sleep);
    this.ctx.container.running = false;
    this.#status = 'stopping';
    await server.end(signal);
    this.#status = 'stopped';
    await this.onStop({ exitCode: 0, reason: 'exit' });
  }

  renewActivityTimeout() {
    clearTimeout(this.#sleep);
    if (!this.#server) return;
    this.#sleep = setTimeout(async () => {
      if (this.inflightRequests > 0) this.renewActivityTimeout();
      else await this.onActivityExpired();
    }, milliseconds(this.sleepAfter));
  }
  async onActivityExpired() {
    await this.stop();
  }
  onStart() {}
  onStop() {}
  onError(error) {
    throw error;
  }

  async containerFetch(first, second, third) {
    const request = first instanceof Request ? first : new Request(first, typeof second === 'object' ? { duplex: 'half', ...second } : {});
    const port = typeof second === 'number' ? second : (third ?? this.defaultPort);
    await this.startAndWaitForPorts();
    this.inflightRequests += 1;
    let ended = false;
    const end = () => {
      if (ended) return;
      ended = true;
      this.inflightRequests -= 1;
      this.renewActivityTimeout();
    };
    const answer = await send(request, this.#portOf(port)).catch((error) => {
      end();
      throw error;
    });
    // A request lasts as long as its socket or its body.
    if (answer.webSocket) {
      for (const event of ['close', 'error']) answer.webSocket.addEventListener(event, end);
      return answer;
    }
    if (answer.body === null) {
      end();
      return answer;
    }
    const { readable, writable } = new TransformStream();
    answer.body.pipeTo(writable).catch(() => {}).finally(end);
    return new Response(readable, answer);
  }
  fetch(request) {
    return Container.prototype.containerFetch.call(this, request, Number(request.headers.get(TARGET_PORT) ?? this.defaultPort));
  }
}
