// node drive.mjs
//
// Drives `penfold serve --api e2b` with the published JavaScript SDK, whose variables (E2B_API_URL and others) say where the server is.
// PENFOLD_TEST_TOKENS is the address of a second server, which knows the key E2B_API_KEY alone. Prints a line for each check, and the
// numbers. The checks are those of drive.py.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { randomInt } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import * as e2b from 'e2b';

const { Sandbox } = e2b;
const SERVER = process.env.E2B_SANDBOX_URL;
// The sandboxes of this program.
const RUN = { run: `${process.pid}-${randomInt(1e9)}` };
const PATIENCE = 20_000;
const checks = [];

/** Tells why a check cannot be made. */
class Skip extends Error {}

function check(name, act) {
    checks.push([name, act]);
}

/** Waits until a condition holds. */
async function until(what, holds) {
    const end = Date.now() + PATIENCE;
    while (!(await holds())) {
        assert(Date.now() < end, `not within ${PATIENCE} ms: ${what}`);
        await pause(10);
    }
}

/** Returns the error that a call must end with. */
async function refusal(call, kind = Error) {
    const given = await call.then((value) => ({ value }), (error) => ({ error }));
    assert('error' in given, `no error, but ${JSON.stringify(given.value)}`);
    assert(given.error instanceof kind, given.error);
    return given.error;
}

/** Counts the processes `sleep NUMBER` of this host, which is not the view of a sandbox. */
function living(number) {
    return readdirSync('/proc').filter((pid) => {
        try {
            return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/cmdline`, 'latin1') === `sleep\0${number}\0`;
        } catch {
            return false;
        }
    }).length;
}

// The processes of `tree`, of which only the last is in the session of the command and waited for.
const TREE = 6;

/** Returns a number and a script: three levels of shells, whose daemons have sessions of their own, a double fork, and nohup. */
function tree() {
    const n = `8${String(randomInt(1e9)).padStart(9, '0')}`;
    const daemons = `sleep ${n} & setsid sleep ${n} & nohup sleep ${n} >/dev/null 2>&1 & (setsid sh -c 'sleep ${n} & sleep ${n}; true' &)`;
    return [n, `${daemons}; sh -c 'sh -c "sleep ${n}; true"; true'`];
}

/** Starts a command in the background, and keeps its output. */
async function start(sandbox, script, options = {}) {
    const command = { said: '', hear: (wanted) => until(`"${wanted}" in "${command.said}"`, () => command.said.includes(wanted)) };
    const onStdout = (text) => (command.said += text);
    command.handle = await sandbox.commands.run(script, { background: true, onStdout, ...options });
    // A command that nobody waits for may fail.
    command.end = command.handle.wait();
    command.end.catch(() => {});
    return command;
}

/** Asks without the SDK; returns the status and the body. */
async function ask(url, options) {
    const answer = await fetch(url, options);
    return [answer.status, await answer.text()];
}

/** Asks a port of a sandbox. */
function askPort(sandbox, port, path) {
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) };
    return ask(SERVER + path, { headers });
}

/** Lists sandboxes, one a page; returns their ids and the number of pages. */
async function listed(query) {
    const pages = Sandbox.list({ query, limit: 1 });
    const ids = [];
    let number = 0;
    for (; pages.hasNext; number++) ids.push(...(await pages.nextItems()).map((one) => one.sandboxId));
    return [ids, number];
}

check('a sandbox has its time limit, metadata and variables', async (sandbox) => {
    const info = await sandbox.getInfo();
    assert.deepEqual(info.metadata, { ...RUN, kind: 'shared' });
    assert.deepEqual([info.sandboxId, info.state], [sandbox.sandboxId, 'running']);
    const seconds = (info.endAt - info.startedAt) / 1000;
    assert(seconds > 500 && seconds < 700, seconds);
    assert.equal((await sandbox.commands.run('echo $OF_SANDBOX')).stdout, 'value\n');
    assert.equal(await sandbox.isRunning(), true);
});

check('a list is filtered and comes in pages', async (sandbox) => {
    const other = await Sandbox.create({ metadata: { ...RUN, kind: 'other & more' } });
    const [ids, pages] = await listed({ metadata: RUN });
    assert.deepEqual([ids.sort(), pages], [[sandbox.sandboxId, other.sandboxId].sort(), 2]);
    assert.deepEqual((await listed({ metadata: { ...RUN, kind: 'other & more' } }))[0], [other.sandboxId]);
    assert.deepEqual((await listed({ metadata: { ...RUN, kind: 'none' } }))[0], []);
    assert.equal(await other.kill(), true);
    assert.deepEqual((await listed({ metadata: RUN }))[0], [sandbox.sandboxId]);
});

check('run: output, exit code, variables, directory, user', async (sandbox) => {
    const options = { envs: { A: 'b' }, cwd: '/etc', user: 'user' };
    const said = await sandbox.commands.run('echo out; echo err >&2; echo $A; pwd; whoami', options);
    assert.deepEqual([said.stdout, said.stderr, said.exitCode], ['out\nb\n/etc\nuser\n', 'err\n', 0]);
    const error = await refusal(sandbox.commands.run('echo bad; exit 7'), e2b.CommandExitError);
    assert.deepEqual([error.stdout, error.exitCode], ['bad\n', 7]);
    await refusal(sandbox.commands.run('true', { user: 'nobody-here' }));
    await refusal(sandbox.commands.run('true', { cwd: '/no/such/directory' }));
});

check('a command in the background: stream, input, end of input', async (sandbox) => {
    const command = await start(sandbox, 'echo up; while read line; do echo got $line; done; echo end', { stdin: true });
    await command.hear('up\n');
    await sandbox.commands.sendStdin(command.handle.pid, 'one\n');
    await command.hear('got one\n');
    await sandbox.commands.closeStdin(command.handle.pid);
    const done = await command.end;
    assert.deepEqual([done.stdout, done.exitCode], ['up\ngot one\nend\n', 0]);
});

check('commands are listed, and a second client connects to one', async (sandbox) => {
    const command = await start(sandbox, 'echo up; read line; echo got $line', { stdin: true, envs: { MARK: RUN.run } });
    await command.hear('up\n');
    const { pid } = command.handle;
    const [running] = (await sandbox.commands.list()).filter((one) => one.pid === pid);
    assert(running.envs.MARK === RUN.run && running.args.at(-1).includes('read line'), running);
    const second = await Sandbox.connect(sandbox.sandboxId);
    let heard = '';
    const same = await second.commands.connect(pid, { onStdout: (text) => (heard += text) });
    await second.commands.sendStdin(pid, 'it\n');
    assert.equal((await same.wait()).exitCode, 0);
    assert(heard.endsWith('got it\n'), heard);
    assert.equal((await command.end).stdout, 'up\ngot it\n');
    assert(!(await sandbox.commands.list()).some((one) => one.pid === pid));
});

check('E2B#1034: kill() of a command leaves none of 6 processes', async (sandbox) => {
    const [number, script] = tree();
    const command = await start(sandbox, script);
    await until('the tree lives', () => living(number) === TREE);
    assert.equal(await command.handle.kill(), true);
    assert.equal(living(number), 0);
    assert.equal(await sandbox.commands.kill(command.handle.pid), false);
    assert.notEqual((await refusal(command.end, e2b.CommandExitError)).exitCode, 0);
});

check('E2B#1034, the control: a signal to the first process alone leaves all 6', async (sandbox) => {
    const [number, script] = tree();
    const command = await start(sandbox, script);
    await until('the tree lives', () => living(number) === TREE);
    await sandbox.commands.run(`kill -9 ${command.handle.pid}`);
    await refusal(command.end, e2b.CommandExitError);
    assert.equal(living(number), TREE);
    assert.equal(await sandbox.commands.kill(command.handle.pid), true);
    assert.equal(living(number), 0);
});

check('the time limit of a command leaves none of 6 processes', async (sandbox) => {
    const [number, script] = tree();
    const command = await start(sandbox, script, { timeoutMs: 2000 });
    await until('the tree lives', () => living(number) === TREE);
    await refusal(command.end, e2b.TimeoutError);
    await until('the tree is gone', () => living(number) === 0);
});

check('a terminal: input, size, kill', async (sandbox) => {
    let said = '';
    const shell = await sandbox.pty.create({ rows: 31, cols: 117, onData: (bytes) => (said += Buffer.from(bytes)) });
    shell.wait().catch(() => {});
    const send = (text) => sandbox.pty.sendInput(shell.pid, Buffer.from(text));
    const hear = (wanted) => until(`"${wanted}" in "${said}"`, () => said.includes(wanted));
    await send('echo size $(stty size)\n');
    await hear('size 31 117\r\n');
    await sandbox.pty.resize(shell.pid, { rows: 20, cols: 99 });
    await send('echo size $(stty size) $TERM\n');
    await hear('size 20 99 xterm-256color\r\n');
    const [number] = tree();
    await send(`setsid sleep ${number} & sleep ${number}\n`);
    await until('both live', () => living(number) === 2);
    assert.equal(await sandbox.pty.kill(shell.pid), true);
    assert.equal(living(number), 0);
    assert.equal(await sandbox.pty.kill(shell.pid), false);
});

check('files: write, read, list, look, rename, remove', async ({ files }) => {
    const bytes = Uint8Array.from({ length: 256 * 999 }, (_, place) => place % 256);
    assert.equal((await files.write('d/text', 'grüße\n')).path, '/home/user/d/text');
    await files.write('/home/user/d/bytes', bytes.buffer);
    assert.equal(await files.read('d/text'), 'grüße\n');
    assert.deepEqual(new Uint8Array(await files.read('d/bytes', { format: 'bytes' })), bytes);
    const names = ['a', 'b', 'c'];
    const many = await files.writeFiles(names.map((name) => ({ path: `many/${name}`, data: name })));
    assert.deepEqual(many.map((one) => one.name), names);
    assert.deepEqual((await files.list('many')).map((one) => one.name), names);
    const deep = (await files.list('/home/user', { depth: 2 })).map((one) => one.name);
    assert(['d', 'many', 'text', 'a'].every((name) => deep.includes(name)), deep);
    assert.deepEqual([await files.makeDir('made/deep'), await files.makeDir('made/deep')], [true, false]);
    const info = await files.getInfo('d/text');
    assert.deepEqual([info.name, info.type, info.size, info.owner], ['text', e2b.FileType.FILE, 8, 'user']);
    assert.equal((await files.rename('d/text', 'made/text')).path, '/home/user/made/text');
    assert.deepEqual([await files.exists('d/text'), await files.exists('made/text')], [false, true]);
    await files.remove('made');
    assert.equal(await files.exists('made/text'), false);
    await refusal(files.read('made/text'), e2b.NotFoundError);
    await refusal(files.list('made'), e2b.NotFoundError);
});

check('files: streams, gzip, metadata', async ({ files }) => {
    const text = 'line\n'.repeat(50_000);
    await files.write('packed', text, { gzip: true, metadata: { of: 'file' } });
    assert.equal(await files.read('packed', { gzip: true }), text);
    assert.deepEqual((await files.getInfo('packed')).metadata, { of: 'file' });
    let size = 0;
    for await (const chunk of await files.read('packed', { format: 'stream' })) size += chunk.length;
    assert.equal(size, text.length);
});

check('a watched directory tells of changes, also below', async ({ files }) => {
    await files.makeDir('seen/below');
    for (const [recursive, name] of [[false, 'near'], [true, 'below/far']]) {
        const heard = [];
        const watcher = await files.watchDir('seen', (event) => heard.push(event.name), { recursive });
        await files.write(`seen/${name}`, 'x');
        await until(`an event of ${name}`, () => heard.includes(name));
        await watcher.stop();
    }
});

check('signed addresses of files', async (sandbox) => {
    await sandbox.files.write('signed', 'content');
    const url = await sandbox.downloadUrl('signed');
    assert(url.startsWith(SERVER), url);
    assert.deepEqual(await ask(url), [200, 'content']);
    assert.deepEqual(await ask(await sandbox.downloadUrl('signed', { useSignatureExpiration: 60 })), [200, 'content']);
    const [status] = await ask(url.replace('signature=v1_', 'signature=v1_A'));
    assert([400, 401, 403, 404].includes(status), status);
    const body = new FormData();
    body.set('file', new Blob(['uploaded']), 'f');
    assert.equal((await ask(await sandbox.uploadUrl('up'), { method: 'POST', body }))[0], 200);
    assert.equal(await sandbox.files.read('up'), 'uploaded');
});

check('a port of a sandbox', async (sandbox) => {
    await sandbox.files.write('www/index.html', 'served');
    const server = await start(sandbox, 'cd www && exec python3 -u -m http.server 8000');
    await until('it listens', async () => (await askPort(sandbox, 8000, '/'))[1] === 'served');
    assert.equal((await askPort(sandbox, 8000, '/none'))[0], 404);
    const [status, said] = await askPort(sandbox, 8001, '/');
    assert(status === 502 && said.includes('port is not open'), said);
    assert.equal(await server.handle.kill(), true);
});

check('the time limit of a sandbox is set anew', async (sandbox) => {
    const before = (await sandbox.getInfo()).endAt;
    await sandbox.setTimeout(1_200_000);
    const seconds = ((await sandbox.getInfo()).endAt - before) / 1000;
    assert(seconds > 500 && seconds < 700, seconds);
});

check('pause, and connect', async (sandbox) => {
    const [number] = tree();
    const command = await start(sandbox, `sleep ${number}`, { timeoutMs: 0 });
    await until('it lives', () => living(number) === 1);
    try {
        assert.equal(await sandbox.pause(), true);
    } catch (error) {
        if (!error.message.includes('no cgroup of its own') || process.geteuid() === 0) throw error;
        assert.equal(await command.handle.kill(), true);
        throw new Skip('this user has no cgroups');
    }
    assert.deepEqual((await listed({ metadata: RUN, state: ['paused'] }))[0], [sandbox.sandboxId]);
    assert.deepEqual([await sandbox.isRunning(), living(number)], [false, 1]);
    const again = await Sandbox.connect(sandbox.sandboxId);
    assert.equal((await again.commands.run('echo on')).stdout, 'on\n');
    assert((await again.commands.list()).some((one) => one.pid === command.handle.pid));
    assert.equal(await again.commands.kill(command.handle.pid), true);
});

check('a template that is not there is refused with the names of the others', async () => {
    assert.match((await refusal(Sandbox.create('no-such-template'))).message, /base/);
});

check('a wrong key is refused, the right one is not', async () => {
    const places = { apiUrl: process.env.PENFOLD_TEST_TOKENS, sandboxUrl: process.env.PENFOLD_TEST_TOKENS };
    await refusal(Sandbox.create({ ...places, apiKey: `e2b_${'0'.repeat(40)}` }), e2b.AuthenticationError);
    const sandbox = await Sandbox.create(places);
    assert.equal((await sandbox.commands.run('echo in')).stdout, 'in\n');
    assert.equal(await sandbox.kill(), true);
});

check('the end of a sandbox: all is gone, and a running command learns of it', async (sandbox) => {
    const [number, script] = tree();
    const command = await start(sandbox, script);
    await until('the tree lives', () => living(number) === TREE);
    assert.equal(await sandbox.kill(), true);
    assert.equal(living(number), 0);
    assert.match((await refusal(command.end)).message, /sandbox was killed/);
    assert.equal(await sandbox.kill(), false);
    assert.equal(await Sandbox.kill(sandbox.sandboxId), false);
    await refusal(sandbox.getInfo(), e2b.NotFoundError);
    await refusal(sandbox.commands.run('true'));
    assert.deepEqual((await listed({ metadata: RUN }))[0], []);
});

const numbers = { passed: 0, failed: 0 };
const sandbox = await Sandbox.create({ timeoutMs: 600_000, metadata: { ...RUN, kind: 'shared' }, envs: { OF_SANDBOX: 'value' } });
for (const [name, act] of checks) {
    try {
        await act(sandbox);
        numbers.passed++;
        console.log(`ok: ${name}`);
    } catch (error) {
        if (error instanceof Skip) {
            console.log(`left out: ${name}: ${error.message}`);
            continue;
        }
        numbers.failed++;
        console.log(`failed: ${name}\n${error.stack}`);
    }
}
console.log(`${numbers.passed} passed, ${numbers.failed} failed`);
process.exit();
