"""Runs commands so that nothing of them is left: ``subprocess`` for whole process trees, by penfold.

>>> import penfold
>>> penfold.run(["true"]).returncode
0
"""

from __future__ import annotations

from subprocess import DEVNULL, PIPE, STDOUT, SubprocessError

from ._binary import find_binary, is_supported
from ._errors import (
    BinaryNotFound,
    CalledProcessError,
    Error,
    LeakError,
    NotVerified,
    StartError,
    TimeoutExpired,
    UnsupportedPlatform,
)
from ._options import Options
from ._report import Process as EndedProcess
from ._report import Report

__version__ = "0.1.0"

if is_supported():
    from ._asyncio import Process, create_subprocess_exec, create_subprocess_shell
    from ._popen import Popen
    from ._run import CompletedProcess, call, check_call, check_output, getoutput, getstatusoutput, run
else:
    from ._elsewhere import (  # type: ignore[assignment,no-redef]
        CompletedProcess,
        Popen,
        Process,
        call,
        check_call,
        check_output,
        create_subprocess_exec,
        create_subprocess_shell,
        getoutput,
        getstatusoutput,
        run,
    )

__all__ = [
    "BinaryNotFound",
    "CalledProcessError",
    "CompletedProcess",
    "DEVNULL",
    "EndedProcess",
    "Error",
    "LeakError",
    "NotVerified",
    "Options",
    "PIPE",
    "Popen",
    "Process",
    "Report",
    "STDOUT",
    "StartError",
    "SubprocessError",
    "TimeoutExpired",
    "UnsupportedPlatform",
    "call",
    "check_call",
    "check_output",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "find_binary",
    "getoutput",
    "getstatusoutput",
    "is_supported",
    "run",
]
