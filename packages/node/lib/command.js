import { inspect } from 'node:util';

import { findBinary } from './binary.js';

/** The flags of `penfold run` for the options. */
function flags(options) {
  const words = [];
  const add = (flag, value) => {
    if (value !== undefined) words.push(`--${flag}=${value}`);
  };
  const milliseconds = (value) => (value === undefined ? undefined : `${Math.max(0, Math.round(value))}ms`);
  add('grace', milliseconds(options.grace));
  add('timeout', milliseconds(options.timeLimit));
  add('signal', options.signalWord);
  add('contain', options.contain);
  add('name', options.name);
  add('memory', options.memory);
  add('pids', options.pids);
  add('cpus', options.cpus);
  return words;
}

/** `stdio` as an array, with at least the three standard streams. */
function stdioOf(stdio) {
  const streams = stdio === undefined || stdio === null || typeof stdio === 'string' ? [stdio, stdio, stdio] : [...stdio];
  while (streams.length < 3) streams.push('pipe');
  return streams.map((stream, number) => stream ?? (number < 3 ? 'pipe' : 'ignore'));
}

/**
 * Translates a command line of `child_process` into one of penfold.
 *
 * The descriptor after those of the caller is for penfold alone: the command does not inherit it.
 */
export function translate(file, args, options) {
  if (typeof file !== 'string') throw wrongType('file', 'a string', file);
  if (file === '') throw invalid('file', 'not empty', file);
  if (options.argv0 !== undefined) {
    throw invalid('options.argv0', 'undefined: penfold cannot give a command another name', options.argv0);
  }
  let words = [file, ...args.map(String)];
  if (options.shell) {
    words = [typeof options.shell === 'string' ? options.shell : '/bin/sh', '-c', words.join(' ')];
  }
  const stdio = stdioOf(options.stdio);
  const status = stdio.length;
  const binary = findBinary();
  // Node may die before penfold looks at its parent: that must be this process.
  const owner = ['--on-owner-exit=kill', `--owner=${process.pid}`];
  const penfold = ['-q', 'run', `--status-fd=${status}`, ...owner, ...flags(options), '--', ...words];
  const { grace, timeLimit, contain, name, memory, pids, cpus, failOnLeak, shell, signalWord, ...rest } = options;
  return { binary, words, status, args: penfold, options: { ...rest, stdio: [...stdio, 'pipe'] } };
}

/** The arguments of `spawn(file, [args], [options])`. */
export function splitArguments(args, options) {
  if (typeof (options ?? {}) !== 'object') throw wrongType('options', 'an object', options);
  if (Array.isArray(args)) return [args, options ?? {}];
  if (args !== undefined && args !== null && typeof args !== 'object') throw wrongType('args', 'an array', args);
  return [[], args ?? options ?? {}];
}

/** The checks of Node for the options that penfold keeps to itself. */
export function checkLimits(options) {
  const timeout = options.timeout ?? 0;
  const maxBuffer = options.maxBuffer ?? 0;
  if (!(Number.isInteger(timeout) && timeout >= 0)) throw outOfRange('timeout', 'an unsigned integer', timeout);
  if (!(typeof maxBuffer === 'number' && maxBuffer >= 0)) {
    throw outOfRange('options.maxBuffer', 'a positive number', maxBuffer);
  }
}

const coded = (error, code) => Object.assign(error, { code });

const wrong = (name, expected, value) =>
  new TypeError(`The "${name}" argument must be ${expected}. Received ${inspect(value)}`);

const invalid = (...what) => coded(wrong(...what), 'ERR_INVALID_ARG_VALUE');

const wrongType = (...what) => coded(wrong(...what), 'ERR_INVALID_ARG_TYPE');

const outOfRange = (name, expected, value) =>
  coded(
    new RangeError(`The value of "${name}" is out of range. It must be ${expected}. Received ${inspect(value)}`),
    'ERR_OUT_OF_RANGE',
  );
