import type {
  ChildProcess,
  ChildProcessWithoutNullStreams,
  ExecFileException,
  ExecFileOptions,
  ExecOptions,
  SpawnOptions,
  SpawnOptionsWithoutStdio,
  SpawnSyncOptions,
  SpawnSyncReturns,
} from 'node:child_process';

/** The options of penfold, which go with those of `node:child_process`. */
export interface PenfoldOptions {
  /** Milliseconds between the polite signal to the tree and SIGKILL; the default of penfold is 10 000. */
  grace?: number;
  /** penfold itself ends the whole tree after so many milliseconds, also while Node is busy; the exit code is 124. */
  timeLimit?: number;
  /** The way in which penfold knows the members of the tree. */
  contain?: 'auto' | 'cgroup' | 'pidns' | 'subreaper';
  /** The name of the sandbox in `penfold ps`. */
  name?: string;
  /** The most memory of the whole tree: bytes, or text such as `'2G'`. */
  memory?: number | string;
  /** The most processes and threads of the whole tree. */
  pids?: number;
  /** The most processors of the whole tree, such as 1.5. */
  cpus?: number;
  /** An error if the command exits with 0 but leaves processes. */
  failOnLeak?: boolean;
}

/** A process that penfold ended. */
export interface EndedProcess {
  pid: number;
  name: string;
  command?: string;
  /** `term`, `kill` and so on. */
  how: string;
  /** Whether the command had left the process behind. */
  stray: boolean;
}

/** What penfold found and did at the end of a command. */
export interface Report {
  id: string;
  /** `exit`, `signal`, `stop`, `kill`, `timeout`, `memory`, `oom`, `owner`, `lost` and so on. */
  cause: string;
  exitCode: number | null;
  exitSignal: NodeJS.Signals | null;
  level: string;
  /** True if penfold has verified that nothing is left. */
  verified: boolean;
  ended: EndedProcess[];
  /** The processes that the command had left behind, which penfold ended. */
  strays: EndedProcess[];
  /** What is left, if `verified` is false. */
  survivors: Record<string, unknown>[];
  durationMs: number;
  /** The report as penfold wrote it. */
  raw: Record<string, unknown>;
}

/** What penfold adds to a child process. */
export interface Tree {
  /** Resolves once the whole tree is gone; rejects if the command did not start. */
  report(): Promise<Report>;
  /** The process id of the command. `pid` is that of penfold, which waits for the whole tree. */
  readonly commandPid: number | undefined;
}

export type PenfoldChildProcess = ChildProcess & Tree;
export type PenfoldChildProcessWithoutNullStreams = ChildProcessWithoutNullStreams & Tree;

/** Runs a command as `spawn` of `node:child_process` does. `exit` and `close` come once the whole tree is gone. */
export function spawn(
  file: string,
  args?: readonly string[],
  options?: SpawnOptionsWithoutStdio & PenfoldOptions,
): PenfoldChildProcessWithoutNullStreams;
export function spawn(file: string, options: SpawnOptionsWithoutStdio & PenfoldOptions): PenfoldChildProcessWithoutNullStreams;
export function spawn(
  file: string,
  args: readonly string[],
  options: SpawnOptions & PenfoldOptions,
): PenfoldChildProcess;
export function spawn(file: string, options: SpawnOptions & PenfoldOptions): PenfoldChildProcess;

export type ExecFileCallback<T = string> = (error: ExecFileException | Error | null, stdout: T, stderr: T) => void;
export type PromiseWithChild<T> = Promise<T> & { child: PenfoldChildProcess };
export type Output<T> = { stdout: T; stderr: T; report: Report };
type Buffered = { encoding: 'buffer' | null };
type Texted = { encoding?: BufferEncoding };

/** Runs a command to its end as `execFile` of `node:child_process` does. */
export function execFile(file: string, callback?: ExecFileCallback): PenfoldChildProcess;
export function execFile(file: string, args: readonly string[], callback?: ExecFileCallback): PenfoldChildProcess;
export function execFile(
  file: string,
  args: readonly string[],
  options: Omit<ExecFileOptions, 'encoding'> & Buffered & PenfoldOptions,
  callback?: ExecFileCallback<Buffer>,
): PenfoldChildProcess;
export function execFile(
  file: string,
  args: readonly string[],
  options: Omit<ExecFileOptions, 'encoding'> & Texted & PenfoldOptions,
  callback?: ExecFileCallback,
): PenfoldChildProcess;
export namespace execFile {
  const __promisify__: typeof execFilePromise;
}

/** `execFile` as a promise. */
export function execFilePromise(
  file: string,
  args: readonly string[],
  options: Omit<ExecFileOptions, 'encoding'> & Buffered & PenfoldOptions,
): PromiseWithChild<Output<Buffer>>;
export function execFilePromise(
  file: string,
  args?: readonly string[],
  options?: Omit<ExecFileOptions, 'encoding'> & Texted & PenfoldOptions,
): PromiseWithChild<Output<string>>;

/** Runs a shell command to its end as `exec` of `node:child_process` does. */
export function exec(command: string, callback?: ExecFileCallback): PenfoldChildProcess;
export function exec(
  command: string,
  options: Omit<ExecOptions, 'encoding'> & Texted & PenfoldOptions,
  callback?: ExecFileCallback,
): PenfoldChildProcess;

/** Runs a command to its end as `spawnSync` of `node:child_process` does. */
export function spawnSync(
  file: string,
  args: readonly string[],
  options: Omit<SpawnSyncOptions, 'encoding'> & { encoding: BufferEncoding } & PenfoldOptions,
): SpawnSyncReturns<string> & { report?: Report };
export function spawnSync(
  file: string,
  args?: readonly string[],
  options?: Omit<SpawnSyncOptions, 'encoding'> & { encoding?: 'buffer' | null } & PenfoldOptions,
): SpawnSyncReturns<Buffer> & { report?: Report };

/** Tells whether penfold works on this platform. */
export function isSupported(): boolean;
/** The path of the `penfold` program. */
export function findBinary(): string;

/** The base of the errors that only this package makes. */
export class PenfoldError extends Error {
  code: string;
}
/** penfold works on Linux only. */
export class UnsupportedPlatformError extends PenfoldError {}
/** There is no `penfold` program. */
export class BinaryNotFoundError extends PenfoldError {}
/** penfold failed before the command started. */
export class StartError extends PenfoldError {}
/** The command has ended, but penfold could not verify that nothing of it is left. */
export class NotVerifiedError extends PenfoldError {
  report: Report;
}
/** `failOnLeak`: the command exited with 0 but left processes, which penfold ended. */
export class LeakError extends PenfoldError {
  report: Report;
}
