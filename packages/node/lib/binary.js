import { accessSync, constants, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

import { BinaryNotFoundError, UnsupportedPlatformError } from './errors.js';

let found;

/** Tells whether penfold works on this platform. */
export const isSupported = () => process.platform === 'linux';

/** The path of the `penfold` program: of the package for this platform, else `$PENFOLD_BIN`, else in `$PATH`. */
export function findBinary() {
  if (!isSupported()) throw new UnsupportedPlatformError();
  return (found ??= packaged() ?? named() ?? inPath());
}

const isProgram = (file) => {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
};

function packaged() {
  try {
    const name = `@penfold/linux-${process.arch}/bin/penfold`;
    const file = createRequire(import.meta.url).resolve(name);
    return isProgram(file) ? file : undefined;
  } catch {
    return undefined;
  }
}

function named() {
  const file = process.env.PENFOLD_BIN;
  if (!file) return undefined;
  if (isProgram(file)) return path.resolve(file);
  throw new BinaryNotFoundError(`$PENFOLD_BIN names '${file}', which is not an executable file`);
}

function inPath() {
  const directories = (process.env.PATH ?? '').split(':').filter((directory) => directory !== '');
  for (const directory of directories) {
    const file = path.resolve(directory, 'penfold');
    // npm puts the start script of this package on the path: it would find itself.
    if (isProgram(file) && !file.includes('node_modules')) return file;
  }
  throw new BinaryNotFoundError(
    `there is no penfold program: @penfold/linux-${process.arch} is not installed, $PENFOLD_BIN is not set, ` +
      'and $PATH has none',
  );
}
