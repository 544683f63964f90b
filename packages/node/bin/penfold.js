#!/usr/bin/env node
// Runs the program of this package. It dies with this process, by its own rule for a caller that has died.
import { spawn } from 'node:child_process';

import { findBinary } from '../index.js';

let binary;
try {
  binary = findBinary();
} catch (error) {
  process.stderr.write(`penfold: ${error.message}\n`);
  process.exit(125);
}
const child = spawn(binary, process.argv.slice(2), { stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2', 'SIGWINCH']) {
  // A terminal sends its signals to the child as well.
  process.on(signal, () => (['SIGTERM', 'SIGUSR1', 'SIGUSR2'].includes(signal) ? child.kill(signal) : undefined));
}
child.on('error', (error) => {
  process.stderr.write(`penfold: ${error.message}\n`);
  process.exit(125);
});
child.on('exit', (code, signal) => {
  if (signal === null) process.exit(code);
  // Node ignores SIGPIPE, and keeps SIGUSR1 for its debugger. The last listener that goes leaves the default action.
  if (signal !== 'SIGKILL') process.on(signal, () => {}).removeAllListeners(signal);
  process.kill(process.pid, signal);
});
