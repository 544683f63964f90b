// The interpreter of a context for JavaScript: reads requests from its input, runs their code one after the other, and writes marks
// between the output of the code. `frames.rs` has the other end.
//
// A line of the input and a mark have at most 4096 bytes and are one write, which the kernel does not divide. Both begin with the
// token of the request, which the code does not know.
(() => {
  'use strict';
  const fs = require('node:fs');
  const inspector = require('node:inspector');
  const net = require('node:net');
  const { stripTypeScriptTypes } = require('node:module');
  const { Console } = require('node:console');
  const { Writable } = require('node:stream');
  const { inspect } = require('node:util');
  const { Script } = require('node:vm');
  const { Worker } = require('node:worker_threads');

  const LONGEST_PART = 4000;
  const LARGEST_EVENT = 16 << 20;
  // The characters of an error that are sent.
  const LONGEST_ERROR = 1 << 20;
  const MOST_INCOMPLETE = 16;
  // The milliseconds that code has to end by itself after its time limit.
  const GRACE = 2000;

  // The code gets an empty input. Files of its own let the descriptors of the code be closed or not wait.
  const input = fs.openSync('/proc/self/fd/0', 'r');
  fs.closeSync(0);
  fs.openSync('/dev/null', 'r');
  const outputs = [1, 2].map((descriptor) => fs.openSync(`/proc/self/fd/${descriptor}`, 'w'));

  const writeAll = (descriptor, data) => {
    let rest = Buffer.from(data);
    while (rest.length > 0) rest = rest.subarray(fs.writeSync(descriptor, rest));
  };
  const stream = (descriptor, number) => {
    const made = new Writable({
      decodeStrings: true,
      write(chunk, _, done) {
        writeAll(descriptor, chunk);
        done();
      },
    });
    return Object.assign(made, { fd: number });
  };
  const streams = outputs.map((descriptor, index) => stream(descriptor, index + 1));
  ['stdout', 'stderr'].forEach((name, index) => {
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => streams[index] });
  });
  globalThis.console = new Console({ stdout: streams[0], stderr: streams[1] });

  let token = '';
  let count = 0;
  const mark = (kind, payload = '', descriptor = outputs[0]) =>
    writeAll(descriptor, Buffer.concat([`\x1e${token}${kind}`, payload, '\n'].map((part) => Buffer.from(part))));
  // Half a character has no place in JSON.
  const whole = (_, value) => (typeof value === 'string' ? (value.toWellFormed?.() ?? value) : value);
  const encode = (event) => Buffer.from(JSON.stringify(event, whole));
  const send = (event) => {
    let data = encode(event);
    if (data.length > LARGEST_EVENT) {
      const text = `a result of ${data.length} bytes is too large: the largest has ${LARGEST_EVENT}`;
      data = encode({ type: 'result', text, metadata: {} });
    }
    for (let start = 0; start < data.length; start += LONGEST_PART) {
      const isLast = start + LONGEST_PART >= data.length;
      mark(isLast ? '.' : '-', data.subarray(start, start + LONGEST_PART));
    }
  };

  // In the REPL mode of the engine, code may await, and may declare a name again. It gives a handle of the value, and this function
  // takes the value itself.
  const session = new inspector.Session();
  session.connect();
  const post = (method, parameters) =>
    new Promise((resolve, reject) => {
      session.post(method, parameters, (error, answer) => (error ? reject(new Error(error.message)) : resolve(answer)));
    });
  let taken;
  const take = (value) => {
    // Not the value itself: a promise would be awaited.
    taken = { value };
  };
  const handleOfTake = (() => {
    const name = `take${Math.random()}`;
    globalThis[name] = take;
    let handle;
    session.post('Runtime.evaluate', { expression: `globalThis[${JSON.stringify(name)}]` }, (_, answer) => {
      handle = answer.result.objectId;
    });
    delete globalThis[name];
    return handle;
  })();
  const valueOf = async ({ objectId, value, unserializableValue, type }) => {
    const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
    await post('Runtime.callFunctionOn', {
      objectId: handleOfTake,
      functionDeclaration: 'function (value) { this(value); }',
      arguments: [type === 'undefined' ? {} : argument],
    });
    const found = taken;
    taken = undefined;
    return found;
  };

  const isObjectLiteral = (code) => {
    if (!/^\s*\{/.test(code)) return false;
    try {
      new Script(`(${code}\n)`);
      return true;
    } catch {
      return false;
    }
  };

  class TimeoutError extends Error {
    name = 'TimeoutError';
  }
  const tooLong = (limit) => Object.assign(new TimeoutError(`the code ran longer than ${limit} ms`), { stack: undefined });

  /** Runs code; returns its value in an object, or throws what the code throws. */
  const evaluate = async (code, limit) => {
    const expression = `${isObjectLiteral(code) ? `(${code}\n)` : code}\n//# sourceURL=run-${count}`;
    let evaluated;
    const begun = Date.now();
    try {
      evaluated = await post('Runtime.evaluate', { expression, replMode: true, objectGroup: 'run', ...(limit ? { timeout: limit } : {}) });
    } catch (error) {
      throw limit && Date.now() - begun >= limit ? tooLong(limit) : error;
    }
    const { result, exceptionDetails } = evaluated;
    if (exceptionDetails) {
      const { value } = await valueOf(exceptionDetails.exception ?? { value: exceptionDetails.text });
      throw value;
    }
    const found = await valueOf(result);
    const value = found?.value;
    return typeof value?.then === 'function' ? { value: await value } : { value };
  };

  // A thread that ends the process if the code does not leave the event loop.
  let guard;
  const armGuard = (deadline) => {
    guard ??= new Worker(
      `const { parentPort } = require('node:worker_threads');
       let timer;
       parentPort.on('message', (ms) => {
         clearTimeout(timer);
         if (ms > 0) timer = setTimeout(() => process.kill(process.pid, 'SIGKILL'), ms);
       });`,
      { eval: true, stdin: false, env: {} },
    );
    guard.unref();
    guard.postMessage(deadline);
  };
  const limited = async (run, limit) => {
    if (!limit) return run();
    armGuard(limit + GRACE);
    let timer;
    const expired = new Promise((_, reject) => {
      timer = setTimeout(() => reject(tooLong(limit)), limit);
    });
    try {
      return await Promise.race([run(), expired]);
    } finally {
      clearTimeout(timer);
      armGuard(0);
    }
  };

  const isPlain = (value) => {
    const prototype = Object.getPrototypeOf(value);
    return Array.isArray(value) || prototype === null || prototype === Object.prototype || typeof value.toJSON === 'function';
  };
  const show = (value) => {
    if (value === undefined) return;
    if (typeof value === 'object' && value !== null && isPlain(value)) {
      try {
        const json = JSON.parse(JSON.stringify(value));
        return send({ type: 'result', json, metadata: {} });
      } catch {
        // It has a circle or a BigInt.
      }
    }
    send({ type: 'result', text: inspect(value, { depth: null, maxArrayLength: 10_000, maxStringLength: null }), metadata: {} });
  };
  const describeError = (error) => {
    const isError = typeof error === 'object' && error !== null && 'message' in error;
    const ename = isError ? String(error.name ?? 'Error') : 'Error';
    const evalue = isError ? String(error.message) : inspect(error);
    const stack = isError && error.stack ? String(error.stack) : `${ename}: ${evalue}`;
    const own = stack.split('\n').filter((line) => !/ at (new Promise \(<anonymous>\)|.*(\[eval|node:|evalmachine))/.test(line));
    let room = LONGEST_ERROR;
    const traceback = own.map((line) => line.slice(0, Math.max(0, (room -= line.length) + line.length)));
    return { type: 'error', ename, evalue: evalue.slice(0, LONGEST_ERROR), traceback: traceback.filter(Boolean) };
  };
  const sendError = (error) => {
    let event;
    try {
      event = describeError(error);
    } catch {
      event = { type: 'error', ename: 'Error', evalue: 'its message cannot be made', traceback: [] };
    }
    send(event);
  };

  const run = async ({ code, language, limit }) => {
    count += 1;
    try {
      const plain = language === 'typescript' ? stripTypeScriptTypes(code, { mode: 'transform' }) : code;
      const { value } = await limited(() => evaluate(plain, limit), limit);
      show(value);
    } catch (error) {
      sendError(error);
      return;
    } finally {
      session.post('Runtime.releaseObjectGroup', { objectGroup: 'run' }, () => {});
    }
    send({ type: 'execution_complete', execution_count: count });
  };
  const answer = async (ofRequest, request) => {
    token = ofRequest;
    for (const descriptor of outputs) mark('(', '', descriptor);
    try {
      if (typeof request.code === 'string') await run(request);
      else send({ type: 'ready', typescript: typeof stripTypeScriptTypes === 'function' });
    } finally {
      for (const descriptor of outputs) mark(')', '', descriptor);
    }
  };

  const report = (error) => streams[1].write(`Uncaught ${inspect(error)}\n`);
  process.on('uncaughtException', report);
  process.on('unhandledRejection', report);

  let turn = Promise.resolve();
  let rest = '';
  const incomplete = new Map();
  const takeLine = (line) => {
    const [ofRequest, kind] = [line.slice(0, 32), line[32]];
    const whole = (incomplete.get(ofRequest) ?? '') + line.slice(33);
    incomplete.delete(ofRequest);
    if (kind === '-') {
      incomplete.set(ofRequest, whole);
      if (incomplete.size > MOST_INCOMPLETE) incomplete.delete(incomplete.keys().next().value);
      return;
    }
    let request;
    try {
      request = JSON.parse(whole);
    } catch {
      // Its beginning was dropped.
      return;
    }
    turn = turn.then(() => answer(ofRequest, request)).catch(report);
  };
  const source = new net.Socket({ fd: input, readable: true, writable: false });
  source.setEncoding('latin1');
  source.on('data', (data) => {
    const lines = (rest + data).split('\n');
    rest = lines.pop();
    lines.forEach(takeLine);
  });
  source.on('end', () => process.exit(0));
  source.on('error', () => process.exit(1));
})();
