// Directories for the state roots and files of tests.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { findBinary, isSupported } from './lib/binary.js';
import { PenfoldError } from './lib/errors.js';

/** Makes a directory below `PENFOLD_TEST_HOME_BASE`, which `penfold guard` sets, else below the temporary directory. */
export function makeTestHome() {
  const base = process.env.PENFOLD_TEST_HOME_BASE || tmpdir();
  mkdirSync(base, { recursive: true, mode: 0o700 });
  const home = realpathSync(mkdtempSync(path.join(base, 'home-')));
  const close = () => {
    const sandboxes = isSupported() ? sweep(home) : [];
    rmSync(home, { recursive: true, force: true });
    if (sandboxes.length > 0) throw new PenfoldError(`the test left sandboxes: ${sandboxes.join(', ')}`, 'ERR_PENFOLD_LEAK');
  };
  return { path: home, stateRoot: path.join(home, 'state'), close };
}

// Ends what uses the directory; the ids of the sandboxes that lived. If something is left, this throws with the words of penfold.
function sweep(home) {
  const words = ['reap', '--json', '--grace', '1s', '--home', home];
  const text = execFileSync(findBinary(), words, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  return (JSON.parse(text).sandboxes ?? []).map(({ id }) => id);
}
