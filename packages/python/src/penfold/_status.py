"""The caller's end of ``penfold run --status-fd``: one line when the command runs, and one with the report at the end."""

from __future__ import annotations

import fcntl
import json
import os
import select
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

#: Room for the report of some thousand processes, so that penfold never waits for a caller that does not read.
_CAPACITY = 1 << 20
_F_SETPIPE_SZ = 1031
#: The patience of penfold, 10 s, and a margin: so long may the supervisor take after the death of `penfold run`.
PATIENCE = 15.0


class Status:
    """The lines that penfold writes."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._fd, self.write_end = _pipe()
        # Several threads may wait. The descriptor is closed after the last of them: its number may come to mean another file.
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_closing = False
        os.set_blocking(self._fd, False)
        #: Whether the report finds room without a reader. False if the user has used up the room for pipes.
        self.has_room = True
        try:
            fcntl.fcntl(self._fd, _F_SETPIPE_SZ, capacity)
        except OSError:
            self.has_room = False
        self._text = bytearray()
        self._running: Optional[bytes] = None
        self._ended: Optional[bytes] = None
        self.is_over = False
        #: Whether all processes of penfold have closed the pipe.
        self.is_at_end = False

    def fileno(self) -> int:
        return self._fd

    @property
    def running(self) -> Optional[Dict[str, Any]]:
        """The first line, once the command runs."""
        return None if self._running is None else json.loads(self._running)

    @property
    def has_run(self) -> bool:
        """Tells whether the command ran; False means that there is no report, or that the report tells why not."""
        return self._running is not None

    @property
    def is_plain(self) -> bool:
        """Tells whether the report has no news for a caller that does not ask for it: the command ran, and all is gone."""
        # The quotes in a string are escaped in JSON, so these words are the keys.
        ended = self._ended
        return ended is not None and b'"verified":true' in ended and b'"failure":' not in ended

    def report(self) -> Optional[Dict[str, Any]]:
        """The report, if penfold has written one."""
        return None if self._ended is None else json.loads(self._ended)["report"]

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        self.close_write_end()
        self.is_over = True
        with self._lock:
            self._is_closing = True
            self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closing and self._waiting == 0 and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # Attributes are missing if `__init__` has failed.
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def read(self) -> bool:
        """Reads what is there, without waiting; returns whether the sandbox is over."""
        with self._lock:
            return self._read()

    def _read(self) -> bool:
        while not self.is_over and self._fd >= 0:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self.is_over = self.is_at_end = True
            self._text += data
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                self._take(bytes(line))
        return self.is_over

    def _take(self, line: bytes) -> None:
        if line.startswith(b'{"event":"running"'):
            self._running = line
        elif line.startswith(b'{"event":"ended"'):
            self._ended = line
            self.is_over = True

    def wait_running(self, pid: int) -> None:
        """Waits until the command runs or the sandbox is over. ``pid`` is that of `penfold run`."""
        self._wait(pid, None, lambda: self.read() or self._running is not None)

    def wait_over(self, pid: int, timeout: Optional[float]) -> bool:
        """Waits until the sandbox is over; False after the timeout. ``pid`` is that of `penfold run`."""
        with self._lock:
            if self._read() or self._is_closing:
                return True
            self._waiting += 1
        try:
            return self._wait(pid, timeout, self.read)
        finally:
            with self._lock:
                self._waiting -= 1
                self._close_unused()

    def _wait(self, pid: int, timeout: Optional[float], is_done: Callable[[], bool]) -> bool:
        if is_done():
            return True
        until = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        launcher = _pidfd(pid)
        # Without `penfold run` the supervisor goes on for its patience at most. The pipe may be held by a process that
        # was forked while this one was open, so its end alone is no news.
        dead_until: Optional[float] = None
        try:
            if launcher is not None:
                poll.register(launcher, select.POLLIN)
            while True:
                ends = [at for at in (until, dead_until) if at is not None]
                left = None if not ends else max(0.0, min(ends) - time.monotonic())
                ready = poll.poll(None if left is None else left * 1000)
                if is_done():
                    return True
                if any(fd == launcher for fd, _ in ready) and launcher is not None:
                    poll.unregister(launcher)
                    dead_until = time.monotonic() + PATIENCE
                now = time.monotonic()
                if until is not None and now >= until:
                    return False
                if dead_until is not None and now >= dead_until:
                    self.is_over = True
                    return True
        finally:
            if launcher is not None:
                os.close(launcher)


def _pidfd(pid: int) -> Optional[int]:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _pipe() -> Tuple[int, int]:
    """Returns a pipe whose ends are none of the three standard streams."""
    ends = list(os.pipe())
    for index, end in enumerate(ends):
        if end < 3:
            ends[index] = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(end)
    return ends[0], ends[1]
