import childProcess from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { closeSync, fstatSync, openSync, readSync, statSync, unlinkSync, writeSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';

import { checkLimits, splitArguments, translate } from './command.js';
import { LeakError, NotVerifiedError, PenfoldError, StartError } from './errors.js';
import { Status, reportOf, signalName, startError, systemError } from './report.js';

/** The patience of penfold, 10 s, and a margin: so long may the supervisor take after the death of `penfold run`. */
const PATIENCE = 15_000;

const numbers = (names) => names.map((name) => os.constants.signals[`SIG${name}`]);

/** The signals that stop or continue a process: they end nothing. */
const STOPPING = new Set(numbers(['STOP', 'TSTP', 'TTIN', 'TTOU', 'CONT']));

/** The signals that stop `penfold run`, or tell that it has failed, and that penfold does not pass on. */
const REFUSED = new Set([...STOPPING, ...numbers(['ILL', 'FPE', 'SEGV', 'BUS', 'TRAP', 'ABRT', 'SYS', 'PIPE'])]);

/** As in Node, the case of a name does not matter. */
const signalNumber = (signal) => (typeof signal === 'string' ? os.constants.signals[signal.toUpperCase()] : signal);

const refused = (signal) => new PenfoldError(`${signal} cannot be sent to a process tree`, 'ERR_PENFOLD_SIGNAL');

/** The number of the kill signal, which must be one that ends something. */
function killNumber({ killSignal }) {
  const number = signalNumber(killSignal ?? 'SIGTERM');
  if (STOPPING.has(number)) throw refused(killSignal);
  return number;
}

/** Gives penfold the kill signal at its start, if penfold would not pass it on later. */
function killOptions(options) {
  const number = killNumber(options);
  return REFUSED.has(number) ? { ...options, signalWord: signalName(number) } : options;
}

/** Runs a command as `spawn` of `node:child_process` does, in a sandbox of penfold. */
export function spawn(file, args, options) {
  [args, options] = splitArguments(args, options);
  const command = translate(file, args, killOptions(options));
  const child = childProcess.spawn(command.binary, command.args, command.options);
  new Tree(child, command, options);
  return child;
}

/** The link between a child process, which is `penfold run`, and the tree below. */
class Tree {
  #child;
  #command;
  #options;
  #emit;
  #status = new Status();
  #stream;
  /** The events of the child that wait for the tree. */
  #held = [];
  #phase = 'starting';
  #exited = false;
  #killed = false;
  #settle;
  #timer;

  constructor(child, command, options) {
    this.#child = child;
    this.#command = command;
    this.#options = options;
    this.#emit = child.emit.bind(child);
    const report = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    // Callers that never ask for the report must not see a rejection.
    report.catch(() => {});
    child.report = () => report;
    child.spawnfile = command.words[0];
    child.spawnargs = command.words;
    child.emit = (event, ...values) => this.#event(event, values);
    this.#wrapKill();
    Object.defineProperty(child, 'commandPid', { get: () => this.#status.running?.pid, enumerable: true });
    const stream = (this.#stream = child.stdio[command.status]);
    child.stdio.length = command.status;
    if (!stream) return;
    stream.setEncoding('utf8');
    stream.on('data', (text) => this.#data(text));
    stream.on('error', () => {});
    stream.on('end', () => this.#over());
    const { ref, unref } = child;
    child.ref = () => (stream.ref(), ref.call(child));
    child.unref = () => (stream.unref(), unref.call(child));
  }

  #wrapKill() {
    const child = this.#child;
    const kill = child.kill;
    child.kill = (signal = 'SIGTERM') => {
      const number = signalNumber(signal);
      if (REFUSED.has(number)) {
        if (number !== killNumber(this.#options)) throw refused(signal);
        // penfold has the kill signal since its start, and sends it to the whole tree when it is asked to end that.
        signal = 'SIGTERM';
      }
      // The tree is gone already, though its exit was not emitted so far.
      if (this.#phase === 'over') return false;
      if (number === os.constants.signals.SIGKILL) this.#killed = true;
      return kill.call(child, signal);
    };
  }

  #event(event, values) {
    switch (event) {
      case 'spawn':
        return this.#hold(event, values);
      case 'exit':
        this.#exited = true;
        // A process that was forked while the descriptor was open may hold it.
        if (this.#phase !== 'over') this.#timer = setTimeout(() => this.#over(), PATIENCE);
        return this.#hold(event, values);
      case 'close':
        return this.#hold(event, values);
      case 'error':
        this.#failedToSpawn(values[0]);
        return this.#emit(event, ...values);
      default:
        return this.#emit(event, ...values);
    }
  }

  #hold(event, values) {
    if (event === 'spawn' && this.#phase === 'running') return this.#emit(event, ...values);
    if (this.#phase === 'done') return this.#emit(event, ...values);
    this.#held.push([event, values]);
    if (this.#phase === 'over' && this.#exited) this.#conclude();
    return true;
  }

  /** An error of the child: without a process nothing was started, as with a directory that does not exist. */
  #failedToSpawn(error) {
    if (this.#child.pid !== undefined || this.#phase !== 'starting') return;
    this.#phase = 'done';
    // Node waits for the end of this stream, and nothing would ever end it.
    this.#stream?.destroy();
    this.#settle.reject(error);
  }

  #data(text) {
    const over = this.#status.add(text);
    if (this.#phase === 'starting' && this.#status.running) {
      this.#phase = 'running';
      this.#release('spawn');
    }
    if (over) this.#over();
  }

  #over() {
    if (this.#phase === 'over' || this.#phase === 'done') return;
    this.#phase = 'over';
    clearTimeout(this.#timer);
    if (this.#exited) this.#conclude();
  }

  /** Emits what was held back, now that the tree is gone and `penfold run` has exited. */
  #conclude() {
    if (this.#phase === 'done') return;
    this.#phase = 'done';
    clearTimeout(this.#timer);
    const data = this.#status.report();
    // A signal that came before penfold could handle it has ended penfold, and nothing was started.
    if (data === undefined && this.#status.running === undefined && this.#child.signalCode === null) {
      const error = new StartError(`cannot run \`${this.#command.words[0]}\`: penfold ended before the command started`);
      return this.#failed(error);
    }
    if (data?.failure) return this.#failed(startError(data.failure, this.#command.words));
    if (data === undefined) return this.#endOrphan();
    this.#finish(data);
  }

  #finish(data) {
    const report = reportOf(data, this.#killed);
    const name = this.#command.words.join(' ');
    this.#settle.resolve(report);
    this.#release('spawn');
    if (!report.verified) this.#emit('error', new NotVerifiedError(name, report));
    else if (this.#options.failOnLeak && this.#child.exitCode === 0 && report.strays.length > 0) {
      this.#emit('error', new LeakError(name, report));
    }
    this.#release('exit');
    this.#release('close');
  }

  /** The command did not start: an error, and no exit, as in Node. */
  #failed(error) {
    this.#settle.reject(error);
    this.#held = this.#held.filter(([event]) => event === 'close');
    const code = error.errno ?? this.#child.exitCode;
    this.#child.exitCode = code;
    this.#held.forEach(([, values]) => values.splice(0, 2, code, null));
    const emit = this.#emit;
    this.#emit = (event, ...values) => (event === 'close' ? emit('close', code, null) : emit(event, ...values));
    this.#emit('error', error);
    this.#release('close');
  }

  /** `penfold run` died without a report: all its processes were killed at once. */
  #endOrphan() {
    const { id, root } = this.#status.running ?? {};
    if (id === undefined) return this.#finish({ cause: this.#killed ? 'kill' : 'stop', verified: true });
    const { words, options } = killOrphan(this.#status.running);
    childProcess.execFile(this.#command.binary, words, options, (error) => {
      // 3: there is no such sandbox any more. Without the state root, that may mean another one.
      this.#finish({ id, cause: 'lost', verified: error === null || (error.code === 3 && root !== undefined) });
    });
  }

  #release(event) {
    const index = this.#held.findIndex(([held]) => held === event);
    if (index < 0) return;
    const [[, values]] = this.#held.splice(index, 1);
    this.#emit(event, ...values);
  }
}

/** The room for the output of `spawnSync`, in bytes: Node's default, and enough for the report of thousands of processes. */
const MAX_BUFFER = 1024 * 1024;

/** How `penfold kill` is called for a sandbox whose `penfold run` has died. */
function killOrphan({ id, root }) {
  const { PENFOLD_HOST: _, ...env } = process.env;
  // The sandbox may be another user's, or have another XDG_RUNTIME_DIR.
  const place = root === undefined ? [] : ['--root', root];
  return { words: [...place, '-q', 'kill', '-f', id], options: { env, ...ownerOf(root) } };
}

/** More than nearly all reports need, in bytes. */
const REPORT_SIZE = 64 * 1024;

/** A temporary file without a name, or nothing where there can be none. */
function unnamedFile() {
  let file;
  try {
    const name = path.join(os.tmpdir(), `penfold-${randomUUID()}`);
    file = openSync(name, 'wx+', 0o600);
    unlinkSync(name);
    // penfold writes over these blanks: a disk that gets full must not take the report away.
    writeSync(file, ' '.repeat(REPORT_SIZE), 0);
    return file;
  } catch {
    if (file !== undefined) closeSync(file);
    return undefined;
  }
}

/** The text of a file from its beginning; its position, which it shares with penfold, is elsewhere. */
function textOf(file) {
  const data = Buffer.alloc(fstatSync(file).size);
  return data.toString('utf8', 0, readSync(file, data, 0, data.length, 0));
}

/** Cuts the output to the caller's limit; more is an error, as in Node. */
function cut(done, limit) {
  const bytes = (data) => (typeof data === 'string' ? Buffer.from(data) : data);
  done.output?.forEach((data, at) => {
    if (data === null || bytes(data).length <= limit) return;
    const kept = bytes(data).subarray(0, limit);
    done.output[at] = typeof data === 'string' ? kept.toString() : kept;
    done.error ??= { errno: -os.constants.errno.ENOBUFS };
  });
  if (done.output) [, done.stdout, done.stderr] = done.output;
}

/** The options for a state root of another user, which penfold lets only this user use. */
function ownerOf(root) {
  if (root === undefined || process.geteuid() !== 0) return {};
  try {
    const { uid, gid } = statSync(root);
    return uid === 0 ? {} : { uid, gid };
  } catch {
    return {};
  }
}

/** Runs penfold to its end; returns what Node says of it, without the report, and the report. */
function runSync(command, options) {
  const limit = options.maxBuffer ?? MAX_BUFFER;
  // Node's limit is for each pipe, that of the report included. A low one leaves no room for that.
  const file = limit < MAX_BUFFER ? unnamedFile() : undefined;
  let done;
  let status;
  const read = () => {
    status = new Status();
    status.add(file === undefined ? (done.output?.[command.status]?.toString() ?? '') : textOf(file));
  };
  try {
    const sync =
      file === undefined
        ? { ...options, maxBuffer: Math.max(limit, MAX_BUFFER) }
        : { ...options, stdio: [...options.stdio.slice(0, -1), file] };
    done = childProcess.spawnSync(command.binary, command.args, sync);
    read();
    // A pipe closes at the end of the tree, even if penfold was killed. A file does not tell it.
    if (file !== undefined && status.running && !status.report()) {
      const orphan = killOrphan(status.running);
      childProcess.spawnSync(command.binary, orphan.words, { ...orphan.options, stdio: 'ignore' });
      read();
    }
  } finally {
    if (file !== undefined) closeSync(file);
  }
  done.output = done.output?.slice(0, command.status) ?? null;
  if (file === undefined) cut(done, limit);
  return { done, status };
}

/** Runs a command to its end as `spawnSync` of `node:child_process` does. */
export function spawnSync(file, args, options) {
  [args, options] = splitArguments(args, options);
  checkLimits(options);
  const command = translate(file, args, syncOptions(options));
  const { done, status } = runSync(command, command.options);
  const data = status.report();
  const { words } = command;
  const failed = (errno) => systemError(errno, words, 'spawnSync');
  if (done.error) {
    // Node's error names penfold.
    done.error = failed(done.error.errno);
    // The command may have died of a pipe that was closed for this.
    if (done.error.code === 'ENOBUFS') Object.assign(done, { status: null, signal: killSignalOf(options) });
  } else if (data?.failure) {
    done.error = startError(data.failure, words, 'spawnSync');
    // As in Node: there was no process.
    Object.assign(done, { pid: 0, status: null, output: null, stdout: null, stderr: null });
  } else if (data === undefined && status.running === undefined) {
    done.error = new StartError(`cannot run \`${words[0]}\`: penfold ended before the command started`);
  }
  if (data === undefined || data.failure) return done;
  done.report = reportOf(data, false);
  const name = words.join(' ');
  if (data.cause === 'timeout' && options.timeout > 0 && !(options.timeLimit < options.timeout)) {
    done.error = failed(-os.constants.errno.ETIMEDOUT);
    Object.assign(done, { status: null, signal: killSignalOf(options) });
  }
  if (!done.report.verified) done.error = new NotVerifiedError(name, done.report);
  else if (options.failOnLeak && done.status === 0 && done.report.strays.length > 0) {
    done.error ??= new LeakError(name, done.report);
  }
  return done;
}

const killSignalOf = (options) => signalName(killNumber(options));

/** Leaves the time limit and the kill to penfold: Node would not wait for the tree, nor for the report. */
function syncOptions(options) {
  const { timeout, killSignal, ...rest } = options;
  const name = killSignalOf(options);
  // Node throws at one that does not exist.
  if (!(name in os.constants.signals)) return options;
  if (timeout > 0) rest.timeLimit = Math.min(timeout, options.timeLimit ?? timeout);
  if (name === 'SIGKILL') rest.grace = 0;
  else if (name !== 'SIGTERM') rest.signalWord = name;
  return rest;
}
