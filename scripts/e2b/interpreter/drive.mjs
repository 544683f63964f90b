// node drive.mjs
//
// Drives the published code interpreter in a sandbox with the published JavaScript SDK. Prints a line for each check, and the numbers.
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import { Sandbox } from '@e2b/code-interpreter';

const checks = {
    'code has its result, and what it has set stays': async (sandbox) => {
        assert.equal((await sandbox.runCode('x = 1')).text, undefined);
        assert.equal((await sandbox.runCode('x + 1')).text, '2');
    },
    'output comes as it is written': async (sandbox) => {
        let heard = '';
        const done = await sandbox.runCode("print('out')", { onStdout: (line) => (heard += line.line) });
        assert.deepEqual([done.logs.stdout.join(''), heard], ['out\n', 'out\n']);
    },
    'an error has its name, its words and its place': async (sandbox) => {
        const { error } = await sandbox.runCode('1 / 0');
        assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero']);
        assert(error.traceback.includes('line 1'), error.traceback);
    },
    'contexts do not share what they have set': async (sandbox) => {
        const context = await sandbox.createCodeContext({ cwd: '/tmp' });
        assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError');
        await sandbox.restartCodeContext(context);
        await sandbox.removeCodeContext(context);
        assert(!(await sandbox.listCodeContexts()).some((one) => one.id === context.id));
    },
};

const numbers = { passed: 0, failed: 0 };
const sandbox = await Sandbox.create();
try {
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49999' };
    // A sandbox is answered once its first process runs.
    for (let tries = 0; (await fetch(`${process.env.E2B_SANDBOX_URL}/health`, { headers })).status !== 200; tries++) {
        assert(tries < 600, 'the server does not listen');
        await pause(100);
    }
    for (const [name, act] of Object.entries(checks)) {
        try {
            await act(sandbox);
            numbers.passed++;
            console.log(`ok: ${name}`);
        } catch (error) {
            numbers.failed++;
            console.log(`failed: ${name}\n${error.stack}`);
        }
    }
} finally {
    await sandbox.kill();
}
console.log(`${numbers.passed} passed, ${numbers.failed} failed`);
process.exit();
