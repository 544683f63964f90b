"""The exceptions of this package."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ._report import Report

CalledProcessError = subprocess.CalledProcessError
TimeoutExpired = subprocess.TimeoutExpired


class Error(Exception):
    """The base of the exceptions that only this package raises."""


class UnsupportedPlatform(Error, NotImplementedError):
    """penfold works on Linux only."""


class BinaryNotFound(Error):
    """There is no ``penfold`` program."""


class StartError(Error):
    """penfold failed before the command started."""


class _Ended(Error):
    """The command has ended, and the report is attached."""

    def __init__(self, message: str, returncode: int, cmd: Any, report: Optional["Report"]) -> None:
        super().__init__(message)
        self.returncode = returncode
        self.cmd = cmd
        self.report = report
        self.stdout: Any = None
        self.stderr: Any = None


class NotVerified(_Ended):
    """The command has ended, but penfold could not verify that nothing of it is left."""


class LeakError(_Ended):
    """``fail_on_leak``: the command exited with 0 but left processes, which penfold ended."""
