// Uses every export as its types say; `tsc --strict` must accept all but the lines that expect an error.
import { promisify } from 'node:util';

import {
  LeakError,
  PenfoldError,
  exec,
  execFile,
  execFilePromise,
  findBinary,
  isSupported,
  spawn,
  spawnSync,
  type Report,
} from 'penfold';

const child = spawn('sh', ['-c', 'true'], { grace: 100, memory: '2G', failOnLeak: true });
child.stdout.on('data', (data: Buffer) => data.length);
child.stdin.end();
const killed: boolean = child.kill('SIGKILL');
const report: Promise<Report> = child.report();
const pid: number | undefined = child.commandPid;

const quiet = spawn('true', { stdio: 'ignore', signal: new AbortController().signal, timeout: 5 });
// @ts-expect-error: the streams may be null
quiet.stdout.on('data', () => {});
// @ts-expect-error: no such level
spawn('true', [], { contain: 'nonsense' });

execFile('true', (error, stdout) => (error instanceof LeakError ? error.report.strays[0]?.name : stdout.trim()));
execFile('true', [], { encoding: 'buffer' }, (_error, stdout: Buffer) => stdout.length);
exec('true', { timeLimit: 5 }, (_error, _stdout: string, stderr: string) => stderr);

export async function main(): Promise<string> {
  const { stdout, report } = await execFilePromise('true', [], { cpus: 1.5 });
  const text: string = stdout;
  const buffer: Buffer = (await execFilePromise('true', [], { encoding: 'buffer' })).stdout;
  const promised: string = (await promisify(execFile)('true', ['a'])).stdout;
  const signal: NodeJS.Signals | null = report.exitSignal;
  const error: PenfoldError = new PenfoldError();
  return text + buffer + promised + signal + error.code + findBinary() + isSupported();
}

const sync = spawnSync('true', [], { encoding: 'utf8' });
const out: string = sync.stdout;
const verified: boolean | undefined = sync.report?.verified;
export const all = [killed, report, pid, out, verified];
