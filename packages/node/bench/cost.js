// Measures what penfold adds to `child_process`: `node bench/cost.js`. Fails if it is more than half of it and 2 ms.
import childProcess from 'node:child_process';
import { performance } from 'node:perf_hooks';
import { promisify } from 'node:util';

import { execFile } from '../index.js';

const ROUNDS = 300;
const both = [promisify(childProcess.execFile), promisify(execFile)];
const times = both.map(() => []);
// By turns, so that the load of the host is the same for both.
for (let round = 0; round < ROUNDS; round++) {
  for (const [index, run] of both.entries()) {
    const begun = performance.now();
    await run('true');
    times[index].push(performance.now() - begun);
  }
}
const [plain, ours] = times.map((taken) => taken.sort((a, b) => a - b)[ROUNDS / 2]);
const limit = 1.5 * plain + 2;
console.log(
  `execFile('true'): child_process ${plain.toFixed(2)} ms, penfold ${ours.toFixed(2)} ms, ` +
    `limit ${limit.toFixed(2)} ms (medians of ${ROUNDS})`,
);
process.exitCode = ours > limit ? 1 : 0;
