"""Commands of asyncio."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Coroutine

import penfold
import pytest
from conftest import DEADLINE, Tree

PIPE = asyncio.subprocess.PIPE


def run(coroutine: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(coroutine)


def test_communicate(tree: Tree) -> None:
    async def main() -> None:
        process = await penfold.create_subprocess_exec(
            "sh", "-c", "setsid sleep 600 & cat; exit 5", stdin=PIPE, stdout=PIPE, env=tree.env
        )
        out, err = await process.communicate(b"in")
        assert (out, err, process.returncode) == (b"in", None, 5)
        assert process.report is not None and process.report.strays
        assert tree.names() == []

    run(main())


def test_shell_and_streams() -> None:
    async def main() -> None:
        process = await penfold.create_subprocess_shell("read a; echo got $a; exit 2", stdin=PIPE, stdout=PIPE)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"x\n")
        assert await process.stdout.readline() == b"got x\n"
        assert await process.wait() == 2 == await process.wait()

    run(main())


async def until_returncode(process: penfold.Process) -> None:
    while process.returncode is None:
        await asyncio.sleep(0.005)


def test_returncode_without_wait(tree: Tree) -> None:
    async def main() -> None:
        process = await penfold.create_subprocess_shell("setsid sleep 600 & exit 4", env=tree.env)
        await asyncio.wait_for(until_returncode(process), DEADLINE)
        assert process.returncode == 4 and tree.names() == []
        assert process.report is not None and process.report.strays and await process.wait() == 4
        process = await penfold.create_subprocess_shell("sleep 600 &", env=tree.env, fail_on_leak=True)
        await asyncio.wait_for(until_returncode(process), DEADLINE)
        with pytest.raises(penfold.LeakError):
            await process.wait()

    run(main())


def test_timeout_and_kill(tree: Tree) -> None:
    async def main() -> None:
        process = await penfold.create_subprocess_shell("setsid sleep 600 & sleep 600", env=tree.env)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 0.3)
        assert process.returncode is None and tree.names().count("sleep") == 2
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        assert tree.names() == [] and process.report is not None and process.report.cause == "kill"

    run(main())


def test_terminate_and_signals(tree: Tree) -> None:
    async def main() -> None:
        process = await penfold.create_subprocess_exec("sleep", "600", env=tree.env)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == -signal.SIGINT
        process = await penfold.create_subprocess_exec("sleep", "600", env=tree.env)
        process.terminate()
        assert await process.wait() == -signal.SIGTERM
        process.kill()

    run(main())


def test_missing_program() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError) as raised:
            await penfold.create_subprocess_exec("no-such-program", stdout=PIPE, stderr=PIPE)
        assert raised.value.filename == "no-such-program"
        with pytest.raises(penfold.StartError, match="contain"):
            await penfold.create_subprocess_exec("true", contain="nonsense", stderr=PIPE)
        with pytest.raises(ValueError, match="preexec_fn"):
            await penfold.create_subprocess_exec("true", preexec_fn=print)

    run(main())


def test_leak_error(tree: Tree) -> None:
    async def main() -> None:
        process = await penfold.create_subprocess_shell(
            "echo out; setsid sleep 600 & sleep 0.1", stdout=PIPE, env=tree.env, fail_on_leak=True
        )
        with pytest.raises(penfold.LeakError) as raised:
            await process.communicate()
        assert raised.value.stdout == b"out\n" and tree.names() == []

    run(main())


def test_many_at_once() -> None:
    async def one(number: int) -> int:
        process = await penfold.create_subprocess_shell(f"setsid sleep 600 & exit {number}")
        return await process.wait()

    async def main() -> None:
        assert await asyncio.gather(*(one(number) for number in range(24))) == list(range(24))

    run(main())
