"""A plugin for pytest: ``pytest --penfold`` runs all tests below ``penfold guard``; the fixture ``leak_guard`` guards one test.

A process is of a test if its environment names the test (pytest sets ``PYTEST_CURRENT_TEST``), or if it is a descendant of
pytest that was not there before the test.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import pytest

from ._binary import find_binary, is_supported
from ._errors import Error

_GUARDED = "PENFOLD_GUARDED"


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("penfold")
    group.addoption(
        "--penfold",
        action="store_true",
        help="run the tests below `penfold guard`: what they leave behind is named and ended, and makes the exit code 123",
    )
    group.addoption(
        "--penfold-leaks",
        choices=("fail", "warn"),
        default="fail",
        help="what a leak does with --penfold (default: fail)",
    )


@pytest.hookimpl(tryfirst=True)  # type: ignore[misc]
def pytest_cmdline_main(config: Any) -> None:
    # A worker of xdist is below the guard of its controller.
    if not config.getoption("--penfold") or os.environ.get(_GUARDED) or hasattr(config, "workerinput"):
        return
    if not is_supported():
        print("penfold: works on Linux only, so --penfold has no effect here", file=sys.stderr)
        return
    try:
        binary = find_binary()
    except Error as error:
        raise pytest.UsageError(f"--penfold: {error}") from None
    arguments = [str(argument) for argument in config.invocation_params.args]
    command = [*_python(), *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    leaks = config.getoption("--penfold-leaks")
    os.environ[_GUARDED] = "1"
    os.execv(binary, [binary, "guard", f"--leaks={leaks}", "--", *command])


def _python() -> List[str]:
    """The words that start this pytest again."""
    program = sys.argv[0] if sys.argv else ""
    if os.path.basename(program) == "__main__.py":
        return [sys.executable, "-m", "pytest"]
    if os.path.basename(program) in ("pytest", "py.test"):
        return [sys.executable, program]
    raise pytest.UsageError("--penfold replaces the program, so it works for the commands `pytest` and `python -m pytest` only")


class _Id(NamedTuple):
    pid: int
    start: bytes


class LeakGuard:
    """What a test may leave behind, and how long it may take to end."""

    def __init__(self, test: str) -> None:
        #: Seconds in which processes may end by themselves after the test.
        self.grace = 1.0
        self._test = f"PYTEST_CURRENT_TEST={test} (".encode()
        self._allowed: List[str] = []
        self._before = self._found()

    def allow(self, part: str) -> None:
        """Leaves processes alone whose command line contains ``part``."""
        self._allowed.append(part)

    def _found(self) -> Set[_Id]:
        everything = _processes()
        below = _descendants(everything)
        found = set()
        for id, (parent, state) in everything.items():
            if state in b"ZX" or id.pid == os.getpid():
                continue
            entries = _read(id.pid, "environ").split(b"\0")
            if id.pid in below or any(entry.startswith(self._test) for entry in entries):
                found.add(id)
        return found

    def _left(self) -> Dict[_Id, str]:
        left = {id: _command(id.pid) for id in self._found() - self._before}
        return {id: command for id, command in left.items() if not any(part in command for part in self._allowed)}

    def _check(self) -> Optional[str]:
        until = time.monotonic() + self.grace
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.01)
        if not left:
            return None
        named = [f"{command} (pid {id.pid})" for id, command in sorted(left.items())]
        # What it starts while it is ended is of this test, too.
        until = time.monotonic() + 5.0
        remaining: Dict[_Id, str] = left
        while remaining and time.monotonic() < until:
            for id in remaining:
                _kill(id)
            time.sleep(0.01)
            remaining = self._left()
        end = "they were killed" if not remaining else f"not ended: {', '.join(remaining.values())}"
        return f"the test left {len(named)} process{'es' if len(named) > 1 else ''}: {', '.join(named)}; {end}"


@pytest.fixture
def leak_guard(request: Any) -> Iterator[Optional[LeakGuard]]:
    """Fails the test if a process that it started outlives it, and kills that process."""
    if not is_supported():
        yield None
        return
    guard = LeakGuard(request.node.nodeid)
    yield guard
    failure = guard._check()
    if failure:
        pytest.fail(failure, pytrace=False)


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _stat(pid: int) -> Optional[Tuple[_Id, int, bytes]]:
    words = _read(pid, "stat").rpartition(b")")[2].split()
    return (_Id(pid, words[19]), int(words[1]), words[0]) if len(words) > 19 else None


def _processes() -> Dict[_Id, Tuple[int, bytes]]:
    stats = (_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat[0]: stat[1:] for stat in stats if stat}


def _descendants(everything: Dict[_Id, Tuple[int, bytes]]) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for id, (parent, _) in everything.items():
        children.setdefault(parent, []).append(id.pid)
    below: Set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in below:
                below.add(child)
                waiting.append(child)
    return below


def _command(pid: int) -> str:
    words = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return words or _read(pid, "comm").decode(errors="replace").strip()


def _kill(id: _Id) -> None:
    """Kills a process by a handle that was checked."""
    try:
        handle = os.pidfd_open(id.pid)
    except OSError:
        return
    try:
        stat = _stat(id.pid)
        if stat and stat[0] == id:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)
