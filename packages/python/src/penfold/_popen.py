"""``Popen``: as that of ``subprocess``, for the whole tree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, AnyStr, Dict, List, Literal, Optional, Tuple, overload

from ._control import end_orphan, is_passed_on, signal_command, start_error
from ._end import end_of, report_of
from ._errors import StartError, _Ended
from ._options import Command, Options, StrOrBytesPath, take_options, words_of, wrapped
from ._report import Report
from ._status import Status

#: The positional parameters of ``subprocess.Popen`` that this module looks at, and their places.
_POSITIONS = {"executable": 2, "preexec_fn": 6, "close_fds": 7, "shell": 8, "cwd": 9, "pass_fds": 16}


class Popen(subprocess.Popen[AnyStr]):
    """Runs a command as ``subprocess.Popen`` does, in a sandbox of penfold.

    The arguments are those of ``subprocess.Popen``, and as keywords ``grace``, ``time_limit``, ``contain``, ``name``,
    ``memory``, ``pids``, ``cpus`` and ``fail_on_leak`` (see ``penfold.Options``).

    When the command ends, penfold ends every process that the command has left, and only then ``wait``, ``poll`` and
    ``communicate`` return. ``terminate`` stops the whole tree, ``kill`` kills it. The tree also ends when this Python
    process dies. ``pid`` is the process of penfold, ``command_pid`` is that of the command.
    """

    @overload
    def __init__(self: "Popen[str]", args: Command, *rest: Any, text: Literal[True], **keywords: Any) -> None: ...
    @overload
    def __init__(self: "Popen[str]", args: Command, *rest: Any, encoding: str, **keywords: Any) -> None: ...
    @overload
    def __init__(self: "Popen[str]", args: Command, *rest: Any, errors: str, **keywords: Any) -> None: ...
    @overload
    def __init__(
        self: "Popen[str]", args: Command, *rest: Any, universal_newlines: Literal[True], **keywords: Any
    ) -> None: ...
    @overload
    def __init__(
        self: "Popen[bytes]",
        args: Command,
        *rest: Any,
        text: Optional[Literal[False]] = None,
        encoding: None = None,
        errors: None = None,
        universal_newlines: Optional[Literal[False]] = None,
        **keywords: Any,
    ) -> None: ...
    @overload
    def __init__(self: "Popen[Any]", args: Command, *rest: Any, **keywords: Any) -> None: ...
    def __init__(self, args: Command, *rest: Any, **keywords: Any) -> None:  # noqa: D107
        self._penfold_status: Optional[Status] = None
        self._penfold_lock: Any = threading.Lock()
        self._penfold_report: Optional[Report] = None
        self._penfold_error: Optional[Exception] = None
        self._penfold_defers: bool = False
        self._penfold_killed: bool = False
        self._penfold_is_settled: bool = False
        # `run` learns from the end that the command did not start, and saves a wake-up.
        waits = keywords.pop("_penfold_waits", True)
        options = take_options(keywords)
        self._penfold_options: Options = options
        given = _Given(rest, keywords)
        if given.value("preexec_fn") is not None:
            raise ValueError("penfold does not support preexec_fn: it would run in penfold, not in the command")
        executable: Optional[StrOrBytesPath] = given.take("executable")
        words = words_of(args, executable, bool(given.take("shell")))
        cwd = given.value("cwd")
        status = Status()
        try:
            given.pass_on(status.write_end)
            super().__init__(wrapped(words, options, status.write_end), *given.rest, **given.keywords)
            self.args = args
            self._penfold_status = status
            status.close_write_end()
            self._penfold_program, self._penfold_cwd = words[0], cwd
            if waits:
                status.wait_running(self.pid)
        except BaseException:
            if self._penfold_status is not None:
                self._penfold_abandon()
            status.close()
            raise
        if waits and not status.has_run:
            self._penfold_check_start()

    @property
    def report(self) -> Optional[Report]:
        """What penfold found and did; None before the end."""
        status = self._penfold_status
        if self._penfold_report is None and self._penfold_is_settled and status is not None:
            self._penfold_report = report_of(status.report() or {}, self._penfold_killed)
        return self._penfold_report

    @property
    def command_pid(self) -> int:
        """The process id of the command. ``pid`` is that of penfold, which waits for the whole tree."""
        running = None if self._penfold_status is None else self._penfold_status.running
        return int(running["pid"]) if running else self.pid

    def poll(self) -> Optional[int]:
        """Returns the return code once the whole tree is gone, else None."""
        status = self._penfold_status
        if status is None or self._penfold_is_settled:
            return super().poll()
        if not status.read():
            return None
        code = super().poll()
        if code is not None:
            self._penfold_settle()
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits until the whole tree is gone, and returns the return code.

        Raises ``NotVerified`` if penfold could not verify that nothing is left, and with ``fail_on_leak`` LeakError.
        """
        status = self._penfold_status
        if status is not None and not self._penfold_is_settled:
            if timeout is None and status.has_room:
                # Only the exit wakes this process, which is a good part of the time of a short command.
                super().wait()
            try:
                is_over = status.wait_over(self.pid, timeout)
            except KeyboardInterrupt:
                # The terminal has interrupted penfold as well: let it finish, as subprocess does.
                status.wait_over(self.pid, 0.25 if timeout is None else min(0.25, timeout))
                raise
            if not is_over:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            super().wait()
            self._penfold_settle()
        if not self._penfold_defers:
            self._penfold_raise()
        return super().wait()

    def communicate(self, input: Any = None, timeout: Optional[float] = None) -> Any:  # noqa: A002
        """Communicates as ``subprocess.Popen`` does, until the whole tree is gone.

        The exceptions of ``wait`` have the output as ``stdout`` and ``stderr``.
        """
        self._penfold_defers = True
        try:
            out = super().communicate(input, timeout)
        finally:
            self._penfold_defers = False
        error = self._penfold_error
        if isinstance(error, _Ended):
            error.stdout, error.stderr = out
        elif isinstance(error, StartError) and out[1]:
            # penfold said why.
            said = out[1] if isinstance(out[1], str) else os.fsdecode(out[1])
            self._penfold_error = start_error(None, self._penfold_program, None, said, self.returncode)
        self._penfold_raise()
        return out

    def _penfold_raise(self) -> None:
        error, self._penfold_error = self._penfold_error, None
        if error is not None:
            raise error

    def send_signal(self, sig: int) -> None:
        """Sends a signal: SIGTERM stops the whole tree, SIGKILL kills it, all others go to the command."""
        status = self._penfold_status
        if self.poll() is not None or status is None:
            return
        if sig == signal.SIGKILL:
            self._penfold_killed = True
        if is_passed_on(sig):
            super().send_signal(sig)
        elif status.has_run:
            signal_command(status.running or {}, sig)

    def _penfold_settle(self) -> None:
        """Takes the report of a sandbox that is over, in one of several threads that wait."""
        with self._penfold_lock:
            self._penfold_take_report()

    def _penfold_take_report(self) -> None:
        status = self._penfold_status
        if status is None or self._penfold_is_settled:
            return
        code = super().wait()
        if not (status.is_plain and not self._penfold_options.fail_on_leak):
            data = status.report()
            if not status.has_run and not self._penfold_killed and (data is None or data.get("failure")):
                self._penfold_error = start_error(data, self._penfold_program, self._penfold_cwd, "", code)
                self._penfold_report = Report.of(data or {})
            else:
                data = data or end_orphan(status)
                end = end_of(data, code, self.args, self._penfold_options, self._penfold_killed)
                self._penfold_report, self.returncode, self._penfold_error = end.report, end.returncode, end.error
        self._penfold_is_settled = True
        status.close()

    def _penfold_check_start(self) -> None:
        """Raises the exception of a command that could not be started; returns if the command was quick."""
        status = self._penfold_status
        assert status is not None
        data = status.report()
        if data is not None and data.get("failure") is None:
            return
        # Before the end of penfold: a full pipe would hold it.
        said = b"" if self.stderr is None or self.stderr.closed else _rest_of(self.stderr)
        code = super().wait()
        self._penfold_is_settled = True
        self._penfold_abandon()
        raise start_error(data, self._penfold_program, self._penfold_cwd, os.fsdecode(said), code)

    def _penfold_abandon(self) -> None:
        """Ends what was started by a constructor that fails."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            super().wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        if self._penfold_status is not None:
            self._penfold_status.close()


def _rest_of(stream: Any) -> bytes:
    """Reads what penfold says before it exits."""
    said = b""
    while True:
        try:
            data = os.read(stream.fileno(), 1 << 16)
        except OSError:
            return said
        if not data:
            return said
        said += data


class _Given:
    """The arguments for ``subprocess.Popen``, by position or by keyword."""

    def __init__(self, rest: Tuple[Any, ...], keywords: Dict[str, Any]) -> None:
        self.rest: List[Any] = list(rest)
        self.keywords = keywords

    def value(self, name: str, default: Any = None) -> Any:
        place = _POSITIONS[name] - 1
        return self.rest[place] if place < len(self.rest) else self.keywords.get(name, default)

    def take(self, name: str) -> Any:
        value = self.value(name)
        self._put(name, None if name == "executable" else False)
        return value

    def _put(self, name: str, value: Any) -> None:
        place = _POSITIONS[name] - 1
        if place < len(self.rest):
            self.rest[place] = value
        else:
            self.keywords[name] = value

    def pass_on(self, fd: int) -> None:
        """Lets penfold inherit a descriptor. penfold does not pass it on to the command."""
        if self.value("close_fds", True) or self.value("pass_fds", ()):
            self._put("pass_fds", (*self.value("pass_fds", ()), fd))
        else:
            os.set_inheritable(fd, True)


if sys.version_info < (3, 9):
    raise ImportError("penfold needs Python 3.9")
