"""Trees of processes with a mark, so that a test finds, and at its end ends, only what it has started."""

from __future__ import annotations

import os
import signal
import time
import uuid
from typing import Callable, Dict, Iterator, List

import pytest

#: No test needs so long; a slow machine might.
DEADLINE = 20.0


def wait_until(what: str, condition: Callable[[], object]) -> None:
    """Waits until the condition holds."""
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.005)


class Tree:
    """The processes whose environment has the mark of this test."""

    def __init__(self) -> None:
        self.mark = f"PENFOLD_TEST_TREE={uuid.uuid4()}"
        self._marked = self.mark.encode()

    @property
    def env(self) -> Dict[str, str]:
        key, _, value = self.mark.partition("=")
        return {**os.environ, key: value}

    def alive(self) -> List[int]:
        """The living processes with the mark, without those of penfold, which are not those of the command."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_marked(pid)]

    def names(self) -> List[str]:
        return [_read(pid, "comm").decode().strip() for pid in self.alive()]

    def _is_marked(self, pid: int) -> bool:
        if self._marked not in _read(pid, "environ").split(b"\0"):
            return False
        state = _read(pid, "stat").rpartition(b")")[2].split()[:1]
        if state in ([], [b"Z"], [b"X"]):
            return False
        return not (_read(pid, "comm").startswith((b"penfold", b"pf-supervisor")))

    def end(self) -> None:
        """Ends what is left, each process by a handle that was checked."""
        until = time.monotonic() + DEADLINE
        while pids := self.alive():
            for pid in pids:
                try:
                    handle = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                try:
                    if self._is_marked(pid):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                finally:
                    os.close(handle)
            assert time.monotonic() < until, self.names()
            time.sleep(0.005)


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.fixture
def tree() -> Iterator[Tree]:
    tree = Tree()
    yield tree
    tree.end()


@pytest.fixture(autouse=True)
def no_new_descriptors() -> Iterator[None]:
    """Fails if a test leaves descriptors open."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    import gc

    gc.collect()
    after = set(os.listdir("/proc/self/fd"))
    assert len(after) <= len(before), sorted(after - before)
