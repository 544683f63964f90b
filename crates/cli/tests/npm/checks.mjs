// What the programs that drive clients share.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

/** Whether a process lives and is no zombie. */
export const alive = (pid) => {
  try {
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
  } catch {
    return false;
  }
};

/** Lets the client log nothing, which logs each of its calls. Returns a function that prints. */
export const silence = () => {
  for (const level of ['debug', 'log', 'info', 'warn', 'error']) console[level] = () => {};
  return (text) => process.stdout.write(`${text}\n`);
};

/** Waits until something holds. */
export const until = async (what, holds) => {
  const end = Date.now() + 20_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, `not within 20 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};

/** The text of a file; none if it is not there. */
export const textOf = (path) => {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return '';
  }
};

/** Fails if the work has no end within this time. */
export const within = (ms, work) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it has not ended within ${ms} ms`)), ms);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
};

/** Runs the checks one after the other, prints a line for each, and exits with 1 if one failed. */
export const runAll = async (checks, print = console.log) => {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await within(30_000, check());
      print(`ok ${name}`);
    } catch (error) {
      failed += 1;
      print(`not ok ${name}\n    ${String(error.stack ?? error).replaceAll('\n', '\n    ')}`);
    }
  }
  print(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
};
