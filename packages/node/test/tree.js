// Trees of processes with a mark, so that a test finds, and at its end ends, only what it has started.
import assert from 'node:assert/strict';
import childProcess from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readFileSync, readdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

/** No test needs so long; a slow machine might. */
const DEADLINE = 20_000;

export async function waitUntil(what, condition) {
  const until = Date.now() + DEADLINE;
  while (!condition()) {
    assert.ok(Date.now() < until, `in vain: ${what}`);
    await sleep(5);
  }
}

const read = (pid, name) => {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'latin1');
  } catch {
    return '';
  }
};

/** Whether a process has not ended: one that nobody has waited for so far has. */
export function isAlive(pid) {
  const state = read(pid, 'stat').split(')').pop().trim().split(' ')[0];
  return !['', 'Z', 'X'].includes(state);
}

export class Tree {
  #value = randomUUID();

  get env() {
    return { ...process.env, PENFOLD_TEST_TREE: this.#value };
  }

  /** The names of the living processes with the mark, without those of penfold, which are not those of the command. */
  names() {
    return this.alive().map((pid) => read(pid, 'comm').trim());
  }

  alive() {
    return readdirSync('/proc').filter((name) => /^\d+$/.test(name) && this.#isMarked(name));
  }

  #isMarked(pid) {
    if (!read(pid, 'environ').split('\0').includes(`PENFOLD_TEST_TREE=${this.#value}`)) return false;
    return isAlive(pid) && !/^(penfold|pf-supervisor)/.test(read(pid, 'comm'));
  }

  /** Ends what plain `child_process` has left. `penfold reap` works by handle: a pid cannot come to mean another process. */
  end(binary) {
    const words = ['reap', '--env', `PENFOLD_TEST_TREE=${this.#value}`, '-t', '0'];
    if (this.alive().length > 0) childProcess.spawnSync(binary, words, { stdio: 'ignore' });
    assert.deepEqual(this.names(), []);
  }
}

/** The events of a child process, until `close`. */
export function events(child) {
  const seen = [];
  for (const event of ['spawn', 'exit', 'error']) {
    child.on(event, (...values) => seen.push([event, ...values.map((value) => value?.code ?? value)]));
  }
  child.stdout?.resume();
  child.stderr?.resume();
  return new Promise((resolve) => child.on('close', (...values) => resolve([...seen, ['close', ...values]])));
}
