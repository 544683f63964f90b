"""What `penfold run` does not pass on by itself: signals for the command alone, and the end of an orphan."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, Dict, Optional

from ._binary import find_binary
from ._errors import StartError
from ._status import Status

#: `penfold run` passes all other signals on to the command.
_NOT_PASSED_ON = frozenset(
    getattr(signal, name)
    for name in (
        "SIGINT SIGHUP SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGCONT SIGILL SIGFPE SIGSEGV SIGBUS SIGTRAP SIGABRT SIGSYS SIGPIPE"
    ).split()
)


def is_passed_on(number: int) -> bool:
    """Tells whether `penfold run` passes the signal on, or acts on it as intended (SIGTERM, SIGKILL)."""
    return number not in _NOT_PASSED_ON


def signal_command(running: Dict[str, Any], number: int) -> None:
    """Sends a signal to the command, unless the command has ended."""
    pid: int = running["pid"]
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Only now the pid cannot come to mean another process.
        if _start_time(pid) == running.get("start_time"):
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _start_time(pid: int) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program may hold spaces and parentheses.
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None


def end_orphan(status: Status) -> Dict[str, Any]:
    """Ends the sandbox of a `penfold run` that died without a report; returns what stands for the report."""
    # A supervisor would have written a report. Without one, penfold was ended before it started anything.
    report: Dict[str, Any] = {"cause": "lost", "verified": status.is_at_end and not status.has_run}
    if status.running is not None:
        report["id"] = status.running["id"]
        environment = {key: value for key, value in os.environ.items() if key != "PENFOLD_HOST"}
        # The sandbox may be another user's, or have another XDG_RUNTIME_DIR.
        root = ["--root", status.running["root"]] if "root" in status.running else []
        done = subprocess.run(
            [find_binary(), *root, "-q", "kill", "-f", report["id"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            **_owner_of(status.running.get("root")),
        )
        # 3: there is no such sandbox any more. Without the state root, that may mean another one.
        report["verified"] = done.returncode == 0 or (done.returncode == 3 and bool(root))
    return report


def _owner_of(root: Optional[str]) -> Dict[str, Any]:
    """The arguments of ``subprocess.run`` for a state root of another user, which penfold lets only this user use."""
    try:
        owner = None if root is None or os.geteuid() != 0 else os.stat(root)
    except OSError:
        return {}
    if owner is None or owner.st_uid == 0:
        return {}
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}


def start_error(report: Optional[Dict[str, Any]], program: Any, cwd: Any, stderr: str, code: int) -> Exception:
    """Returns the exception for a command that did not start, as ``subprocess`` raises it."""
    failure = (report or {}).get("failure")
    if failure == "not-found":
        return FileNotFoundError(2, os.strerror(2), os.fsdecode(program))
    if isinstance(failure, dict):
        for kind, of in (("not-executable", program), ("directory", cwd or program)):
            if kind in failure:
                return OSError(failure[kind], os.strerror(failure[kind]), os.fsdecode(of))
        return StartError(f"cannot run {os.fsdecode(program)!r}: {failure.get('other', failure)}")
    said = stderr.strip() or f"penfold ended with {code} before the command started"
    return StartError(f"cannot run {os.fsdecode(program)!r}: {said}")
