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
  if (typeof file !== 'string') throw invalid('file', 'a string', file);
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
  const penfold = ['-q', 'run', `--status-fd=${status}`, ...flags(options), '--', ...words];
  const { grace, timeLimit, contain, name, memory, pids, cpus, failOnLeak, shell, signalWord, ...rest } = options;
  return { binary, words, status, args: penfold, options: { ...rest, stdio: [...stdio, 'pipe'] } };
}

/** The arguments of `spawn(file, [args], [options])`. */
export function splitArguments(args, options) {
  if (Array.isArray(args)) return [args, options ?? {}];
  if (args !== undefined && args !== null && typeof args !== 'object') throw invalid('args', 'an array', args);
  return [[], args ?? options ?? {}];
}

export function invalid(name, expected, value) {
  const error = new TypeError(`The "${name}" argument must be ${expected}. Received ${JSON.stringify(value)}`);
  error.code = 'ERR_INVALID_ARG_VALUE';
  return error;
}
