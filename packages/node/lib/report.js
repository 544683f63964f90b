import os from 'node:os';
import { getSystemErrorName } from 'node:util';

import { StartError } from './errors.js';

/** The lines of `--status-fd`. */
export class Status {
  running;
  #ended;
  #text = '';

  /** Takes a piece of text; returns whether the report is complete. */
  add(text) {
    const lines = (this.#text + text).split('\n');
    this.#text = lines.pop();
    for (const line of lines) {
      if (line.startsWith('{"event":"running"')) this.running = JSON.parse(line);
      else if (line.startsWith('{"event":"ended"')) this.#ended = line;
    }
    return this.#ended !== undefined;
  }

  /** The report, if penfold has written one. */
  report() {
    return this.#ended === undefined ? undefined : JSON.parse(this.#ended).report;
  }
}

/** Makes a report of the JSON that penfold writes. */
export function reportOf(data, killed) {
  const ended = data.ended ?? [];
  return {
    id: data.id,
    // The supervisor saw the death of `penfold run`, and not who killed it.
    cause: killed && data.cause === 'owner' ? 'kill' : data.cause,
    exitCode: data.exit?.code ?? null,
    exitSignal: data.exit?.signal === undefined ? null : signalName(data.exit.signal),
    level: data.level,
    verified: data.verified === true,
    ended,
    strays: ended.filter((process) => process.stray),
    survivors: data.survivors ?? [],
    durationMs: data.duration_ms ?? 0,
    raw: data,
  };
}

/** The error of a command that did not start, as `child_process` makes it. */
export function startError(failure, words, call = 'spawn') {
  const number =
    failure === 'not-found' ? os.constants.errno.ENOENT : (failure['not-executable'] ?? failure.directory);
  if (number === undefined) return new StartError(`cannot run \`${words[0]}\`: ${failure.other}`);
  return systemError(-number, words, call);
}

/** An error of `spawn`, as Node makes it. */
export function systemError(errno, words, call = 'spawn') {
  const code = getSystemErrorName(errno);
  const syscall = `${call} ${words[0]}`;
  const error = new Error(`${syscall} ${code}`);
  return Object.assign(error, { errno, code, syscall, path: words[0], spawnargs: words.slice(1) });
}

export const signalName = (number) =>
  Object.keys(os.constants.signals).find((name) => os.constants.signals[name] === number) ?? `SIG${number}`;
