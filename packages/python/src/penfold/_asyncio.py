"""Commands for asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Dict, Optional, Tuple

from ._control import end_orphan, is_passed_on, signal_command, start_error
from ._end import end_of
from ._errors import _Ended
from ._options import Options, StrOrBytesPath, take_options, words_of, wrapped
from ._report import Report
from . import _status
from ._status import Status

_LIMIT = 2**16


class Process:
    """A command, with the methods of ``asyncio.subprocess.Process``, for the whole tree."""

    def __init__(self, inner: asyncio.subprocess.Process, status: Status, cmd: Any, options: Options) -> None:
        self._inner = inner
        self._status = status
        self._options = options
        self._over = asyncio.Event()
        self._runs = asyncio.Event()
        self._settling = asyncio.Lock()
        self._report: Optional[Report] = None
        self._returncode: Optional[int] = None
        self._error: Optional[_Ended] = None
        self._killed = False
        self._loop = asyncio.get_running_loop()
        #: The command, as it was given.
        self.args = cmd
        self.stdin = inner.stdin
        self.stdout = inner.stdout
        self.stderr = inner.stderr
        self.pid: int = inner.pid
        self._loop.add_reader(status.fileno(), self._read)

    def __repr__(self) -> str:
        return f"<penfold.Process {self.pid}>"

    @property
    def returncode(self) -> Optional[int]:
        """The return code; None until the whole tree is gone."""
        code = self._inner.returncode
        if self._returncode is None and code is not None and self._status.is_over:
            data = self._status.report()
            # Without a report, `wait` ends what is left.
            if data is not None:
                self._take(data, code)
        return self._returncode

    @property
    def report(self) -> Optional[Report]:
        """What penfold found and did; None before the end."""
        return self._report

    @property
    def command_pid(self) -> int:
        """The process id of the command. ``pid`` is that of penfold, which waits for the whole tree."""
        running = self._status.running
        return int(running["pid"]) if running else self.pid

    async def wait(self) -> int:
        """Waits until the whole tree is gone, and returns the return code; raises as ``Popen.wait`` does."""
        code = await self._settle()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return code

    async def communicate(self, input: Optional[bytes] = None) -> Tuple[Any, Any]:  # noqa: A002
        """Communicates as ``asyncio.subprocess.Process`` does, until the whole tree is gone."""
        out = await self._inner.communicate(input)
        await self._settle()
        if self._error is not None:
            self._error.stdout, self._error.stderr = out
        await self.wait()
        return out

    def send_signal(self, signal: int) -> None:  # noqa: A002
        """Sends a signal: SIGTERM stops the whole tree, SIGKILL kills it, all others go to the command."""
        if self._status.is_over:
            return
        if is_passed_on(signal):
            self._killed = self._killed or signal == _KILL
            self._inner.send_signal(signal)
        elif self._status.running is not None:
            signal_command(self._status.running, signal)

    def terminate(self) -> None:
        """Stops the whole tree: SIGTERM to all, the grace, SIGKILL to the rest."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the whole tree."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> None:
        over = self._status.read()
        if over:
            self._loop.remove_reader(self._status.fileno())
            self._over.set()
        if over or self._status.running is not None:
            self._runs.set()

    async def _settle(self) -> int:
        code = await self._inner.wait()
        async with self._settling:
            if self._returncode is not None:
                return self._returncode
            try:
                # Without `penfold run` the supervisor goes on, for its patience at most.
                await asyncio.wait_for(self._over.wait(), _status.PATIENCE)
            except asyncio.TimeoutError:
                self._loop.remove_reader(self._status.fileno())
            data = self._status.report()
            if data is None:
                data = await self._loop.run_in_executor(None, end_orphan, self._status)
            # Meanwhile `returncode` may have been asked for.
            return self._take(data, code) if self._returncode is None else self._returncode

    def _take(self, data: Dict[str, Any], code: int) -> int:
        end = end_of(data, code, self.args, self._options, self._killed)
        self._report, self._returncode, self._error = end.report, end.returncode, end.error
        self._status.close()
        return end.returncode

    async def _started(self, program: StrOrBytesPath, cwd: Any) -> None:
        runs, ended = asyncio.ensure_future(self._runs.wait()), asyncio.ensure_future(self._inner.wait())
        try:
            await asyncio.wait({runs, ended}, return_when=asyncio.FIRST_COMPLETED)
            # The pipe may be held by a process that was forked while it was open. The supervisor has its patience.
            await asyncio.wait({runs}, timeout=_status.PATIENCE)
        finally:
            runs.cancel()
            ended.cancel()
        data = self._status.report()
        if self._status.running is not None or (data is not None and data.get("failure") is None):
            return
        said = b"" if self._inner.stderr is None else await self._inner.stderr.read()
        code = await self._inner.wait()
        self._abandon()
        raise start_error(data, program, cwd, os.fsdecode(said), code)

    def _abandon(self) -> None:
        if self._inner.returncode is None:
            self._inner.kill()
        self._loop.remove_reader(self._status.fileno())
        self._status.close()
        if self.stdin is not None:
            self.stdin.close()


_KILL = signal.SIGKILL


async def create_subprocess_exec(
    program: StrOrBytesPath,
    *args: StrOrBytesPath,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    limit: int = _LIMIT,
    **keywords: Any,
) -> Process:
    """Runs a command as ``asyncio.create_subprocess_exec`` does. The options of penfold are keywords."""
    options = take_options(keywords)
    words = words_of([program, *args], keywords.pop("executable", None))
    if keywords.get("preexec_fn") is not None:
        raise ValueError("penfold does not support preexec_fn: it would run in penfold, not in the command")
    status = Status()
    try:
        pass_fds = (*keywords.pop("pass_fds", ()), status.write_end)
        inner = await asyncio.create_subprocess_exec(
            *wrapped(words, options, status.write_end),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            limit=limit,
            pass_fds=pass_fds,
            **keywords,
        )
        status.close_write_end()
        process = Process(inner, status, [program, *args], options)
    except BaseException:
        status.close()
        raise
    try:
        await process._started(words[0], keywords.get("cwd"))
    except asyncio.CancelledError:
        process._abandon()
        raise
    return process


async def create_subprocess_shell(
    cmd: str,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    limit: int = _LIMIT,
    **keywords: Any,
) -> Process:
    """Runs a shell command as ``asyncio.create_subprocess_shell`` does. The options of penfold are keywords."""
    shell = keywords.pop("executable", None) or "/bin/sh"
    process = await create_subprocess_exec(
        shell, "-c", cmd, stdin=stdin, stdout=stdout, stderr=stderr, limit=limit, **keywords
    )
    process.args = cmd
    return process
