"""A plugin for pytest: ``pytest --penfold`` runs all tests below ``penfold guard``; the fixture ``leak_guard`` guards one test.

For ``leak_guard``, a process is of a test if its environment has the mark of this test, or if it is a descendant of pytest that
was not there before, and not a descendant of one that was: a server of all tests may start workers meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import pytest

from ._binary import find_binary, is_supported
from ._errors import Error

_GUARDED = "PENFOLD_GUARDED"
_MARK = "PENFOLD_LEAK_GUARD"


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
    command = _command_of_pytest([str(argument) for argument in config.invocation_params.args])
    # pytest has put /dev/null in the place of standard input.
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    leaks = config.getoption("--penfold-leaks")
    os.environ[_GUARDED] = "1"
    os.execv(binary, [binary, "guard", f"--leaks={leaks}", "--", *command])


def _command_of_pytest(arguments: List[str]) -> List[str]:
    """The words that start this pytest again, with the options of Python."""
    program = sys.argv[0] if sys.argv else ""
    directory, name = os.path.split(program)
    own = os.path.dirname(os.path.abspath(pytest.__file__))
    if re.fullmatch(r"(pytest|py\.test)(-[\d.]+)?", name):
        start = [program]
    elif name == "__main__.py" and os.path.realpath(directory) == os.path.realpath(own):
        start = ["-m", "pytest"]
    else:
        raise pytest.UsageError(
            "--penfold replaces the program, so it works for the commands `pytest` and `python -m pytest` only"
        )
    return [sys.executable, *_options_of_python(), *start, *arguments]


def _options_of_python() -> List[str]:
    """The options before the script or the module; Python before 3.10 does not tell them."""
    words = getattr(sys, "orig_argv", [])[1:]
    options: List[str] = []
    while words and words[0].startswith("-") and not words[0].startswith("-m") and words[0] != "-":
        # These take the next word, if nothing follows in the same.
        count = 2 if words[0] in ("-X", "-W", "--check-hash-based-pycs") else 1
        options, words = options + words[:count], words[count:]
    return options


class _Id(NamedTuple):
    pid: int
    start: bytes


class LeakGuard:
    """What a test may leave behind, and how long it may take to end."""

    def __init__(self) -> None:
        #: Seconds in which processes may end by themselves after the test.
        self.grace = 1.0
        self._mark = f"{_MARK}={uuid.uuid4()}"
        self._allowed: List[str] = []
        self._before = set(_processes())
        key, _, value = self._mark.partition("=")
        self._outer = os.environ.get(key)
        os.environ[key] = value

    def _end(self) -> None:
        os.environ.pop(_MARK, None)
        if self._outer is not None:
            os.environ[_MARK] = self._outer

    def allow(self, part: str) -> None:
        """Leaves processes alone whose command line contains ``part``."""
        self._allowed.append(part)

    def _left(self) -> Dict[_Id, str]:
        everything = _processes()
        # What was there before is left out, with all below it.
        others = {id.pid for id in everything if id in self._before} - {os.getpid()} | _helpers()
        below = _descendants(everything, others)
        mark = self._mark.encode()
        left = {}
        for id, (_, state) in everything.items():
            if state in b"ZX" or id in self._before or id.pid in others:
                continue
            if id.pid in below or mark in _read(id.pid, "environ").split(b"\0"):
                left[id] = _command(id.pid)
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
def leak_guard() -> Iterator[Optional[LeakGuard]]:
    """Fails the test if a process that it started outlives it, and kills that process."""
    if not is_supported():
        yield None
        return
    guard = LeakGuard()
    yield guard
    guard._end()
    failure = guard._check()
    if failure:
        pytest.fail(failure, pytrace=False)


@pytest.fixture
def penfold_home() -> Iterator[Path]:
    """A directory for the state roots and files of a test, below ``$PENFOLD_TEST_HOME_BASE`` if that is set.

    After the test, what still uses the directory is ended, and the directory is removed. The test fails if a sandbox lived there.
    """
    base = os.environ.get("PENFOLD_TEST_HOME_BASE") or tempfile.gettempdir()
    os.makedirs(base, mode=0o700, exist_ok=True)
    home = Path(os.path.realpath(tempfile.mkdtemp(prefix="home-", dir=base)))
    yield home
    failure = _sweep(home) if is_supported() else None
    shutil.rmtree(home)
    if failure:
        pytest.fail(failure, pytrace=False)


def _sweep(home: Path) -> Optional[str]:
    """Ends what uses the directory; says which sandboxes lived, and what could not be ended."""
    words = [find_binary(), "reap", "--json", "--grace", "1s", "--home", str(home)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        pytest.fail(f"cannot end what uses {home}: {done.stderr.strip()}", pytrace=False)
    living = [sandbox["id"] for sandbox in json.loads(done.stdout).get("sandboxes", [])]
    return f"the test left {len(living)} sandbox{'es' if len(living) > 1 else ''}: {', '.join(living)}" if living else None


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


def _descendants(everything: Dict[_Id, Tuple[int, bytes]], without: Set[int]) -> Set[int]:
    """The processes below this one, without these and those below them."""
    children: Dict[int, List[int]] = {}
    for id, (parent, _) in everything.items():
        children.setdefault(parent, []).append(id.pid)
    below: Set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in below and child not in without:
                below.add(child)
                waiting.append(child)
    return below


def _helpers() -> Set[int]:
    """The processes of multiprocessing that live as long as this one."""
    found = set()
    for module, name, attribute in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ):
        pid = getattr(getattr(sys.modules.get(module), name, None), attribute, None)
        if isinstance(pid, int):
            found.add(pid)
    return found


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
