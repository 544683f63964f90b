export { findBinary, isSupported } from './lib/binary.js';
export {
  BinaryNotFoundError,
  LeakError,
  NotVerifiedError,
  PenfoldError,
  StartError,
  UnsupportedPlatformError,
} from './lib/errors.js';
export { exec, execFile, execFilePromise } from './lib/exec_file.js';
export { spawn, spawnSync } from './lib/spawn.js';
