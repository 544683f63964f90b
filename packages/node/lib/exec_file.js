import { Buffer } from 'node:buffer';
import { promisify } from 'node:util';

import { checkLimits, splitArguments } from './command.js';
import { spawn } from './spawn.js';

const MAX_BUFFER = 1024 * 1024;

/** Collects the output of a stream, and ends the tree when there is too much. */
class Collector {
  #parts = [];
  #length = 0;
  #encoding;

  constructor(stream, name, encoding, maxBuffer, exceeded) {
    this.#encoding = encoding;
    stream?.on('data', (data) => {
      const room = maxBuffer - this.#length;
      this.#length += data.length;
      this.#parts.push(data.length > room ? data.subarray(0, Math.max(0, room)) : data);
      if (this.#length > maxBuffer) exceeded(name);
    });
  }

  value() {
    const all = Buffer.concat(this.#parts);
    return this.#encoding === 'buffer' || !Buffer.isEncoding(this.#encoding) ? all : all.toString(this.#encoding);
  }
}

/** Runs a command to its end as `execFile` of `node:child_process` does. */
export function execFile(file, args, options, callback) {
  if (typeof args === 'function') [args, options, callback] = [[], {}, args];
  else if (typeof options === 'function') [options, callback] = [undefined, options];
  [args, options] = splitArguments(args, options);
  const settings = { encoding: 'utf8', timeout: 0, maxBuffer: MAX_BUFFER, killSignal: 'SIGTERM', ...options };
  checkLimits(settings);
  const { encoding, maxBuffer, timeout, killSignal, ...rest } = settings;
  // `stdio` is not an option of `execFile`. The time limit is kept here, so that `killed` can tell.
  const child = spawn(file, args, { ...rest, killSignal, stdio: 'pipe' });
  let failure;
  let timer;
  const kill = () => {
    child.stdout?.destroy();
    child.stderr?.destroy();
    child.kill(killSignal ?? 'SIGTERM');
  };
  const exceeded = (name) => {
    if (failure) return;
    failure = new RangeError(`${name} maxBuffer length exceeded`);
    failure.code = 'ERR_CHILD_PROCESS_STDIO_MAXBUFFER';
    kill();
  };
  const out = new Collector(child.stdout, 'stdout', encoding, maxBuffer, exceeded);
  const err = new Collector(child.stderr, 'stderr', encoding, maxBuffer, exceeded);
  if (timeout > 0) timer = setTimeout(kill, timeout);
  let finished = false;
  const finish = (code, signal) => {
    if (finished) return;
    finished = true;
    clearTimeout(timer);
    const stdout = out.value();
    const stderr = err.value();
    const cmd = [file, ...args].join(' ');
    if (!failure && (code !== 0 || signal !== null)) {
      failure = new Error(`Command failed: ${cmd}\n${stderr}`);
      Object.assign(failure, { code, killed: child.killed, signal });
    }
    if (failure) failure.cmd ??= cmd;
    callback?.(failure ?? null, stdout, stderr);
  };
  child.on('error', (error) => {
    failure ??= error;
    // Without a process there is no `close`.
    if (child.pid === undefined) finish(null, null);
  });
  child.on('close', finish);
  return child;
}

/** `execFile` as a promise of `{ stdout, stderr, report }`; `child` is the process. */
export function execFilePromise(file, args, options) {
  let child;
  const promise = new Promise((resolve, reject) => {
    child = execFile(file, ...(Array.isArray(args) ? [args, options ?? {}] : [[], args ?? {}]), (error, stdout, stderr) => {
      if (error) return reject(Object.assign(error, { stdout, stderr }));
      child.report().then((report) => resolve({ stdout, stderr, report }), reject);
    });
  });
  promise.child = child;
  return promise;
}

Object.defineProperty(execFile, promisify.custom, { value: execFilePromise });

/** Runs a shell command to its end as `exec` of `node:child_process` does. */
export function exec(command, options, callback) {
  if (typeof options === 'function') [options, callback] = [{}, options];
  return execFile(command, [], { ...options, shell: options?.shell ?? true }, callback);
}

Object.defineProperty(exec, promisify.custom, {
  value: (command, options) => execFilePromise(command, [], { ...options, shell: options?.shell ?? true }),
});
