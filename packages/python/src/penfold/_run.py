"""The functions of ``subprocess`` that run a command to its end."""

from __future__ import annotations

import subprocess
from typing import Any, AnyStr, Literal, Optional, overload

from ._options import Command
from ._popen import Popen
from ._report import Report


class CompletedProcess(subprocess.CompletedProcess[AnyStr]):
    """As that of ``subprocess``, with the report of penfold."""

    def __init__(
        self,
        args: Any,
        returncode: int,
        stdout: Any = None,
        stderr: Any = None,
        report: Optional[Report] = None,
    ) -> None:
        super().__init__(args, returncode, stdout, stderr)
        self.report = report


@overload
def run(args: Command, *rest: Any, text: Literal[True], **keywords: Any) -> "CompletedProcess[str]": ...
@overload
def run(args: Command, *rest: Any, encoding: str, **keywords: Any) -> "CompletedProcess[str]": ...
@overload
def run(args: Command, *rest: Any, universal_newlines: Literal[True], **keywords: Any) -> "CompletedProcess[str]": ...
@overload
def run(
    args: Command,
    *rest: Any,
    text: Optional[Literal[False]] = None,
    encoding: None = None,
    errors: None = None,
    universal_newlines: Optional[Literal[False]] = None,
    **keywords: Any,
) -> "CompletedProcess[bytes]": ...
@overload
def run(args: Command, *rest: Any, **keywords: Any) -> "CompletedProcess[Any]": ...
def run(
    args: Command,
    *rest: Any,
    input: Any = None,  # noqa: A002
    capture_output: bool = False,
    timeout: Optional[float] = None,
    check: bool = False,
    **keywords: Any,
) -> "CompletedProcess[Any]":
    """Runs a command as ``subprocess.run`` does; returns when nothing of the command is left.

    After the timeout the whole tree is killed and verified gone before ``TimeoutExpired`` is raised.
    """
    if input is not None:
        if keywords.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        keywords["stdin"] = subprocess.PIPE
    if capture_output:
        if keywords.get("stdout") is not None or keywords.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        keywords["stdout"] = keywords["stderr"] = subprocess.PIPE
    process: Popen[Any]
    with Popen(args, *rest, _penfold_waits=False, **keywords) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired as expired:
            # What was read stays with the exception, as in subprocess.
            process.kill()
            process.wait()
            expired.report = process.report  # type: ignore[attr-defined]
            raise
        except BaseException:
            # Nothing is sent to a tree that is gone, as after a LeakError.
            process.kill()
            raise
    if check and process.returncode:
        failed = subprocess.CalledProcessError(process.returncode, process.args, output=out, stderr=err)
        failed.report = process.report  # type: ignore[attr-defined]
        raise failed
    return CompletedProcess(process.args, process.returncode, out, err, process.report)


def call(args: Command, *rest: Any, timeout: Optional[float] = None, **keywords: Any) -> int:
    """Runs a command as ``subprocess.call`` does."""
    return run(args, *rest, timeout=timeout, **keywords).returncode


def check_call(args: Command, *rest: Any, timeout: Optional[float] = None, **keywords: Any) -> int:
    """Runs a command as ``subprocess.check_call`` does."""
    return run(args, *rest, timeout=timeout, check=True, **keywords).returncode


def check_output(args: Command, *rest: Any, timeout: Optional[float] = None, **keywords: Any) -> Any:
    """Runs a command as ``subprocess.check_output`` does."""
    if "stdout" in keywords:
        raise ValueError("stdout argument not allowed, it will be overridden.")
    if keywords.get("input", "") is None:
        is_text = any(keywords.get(key) for key in ("text", "encoding", "errors", "universal_newlines"))
        keywords["input"] = "" if is_text else b""
    return run(args, *rest, timeout=timeout, check=True, stdout=subprocess.PIPE, **keywords).stdout


def getstatusoutput(cmd: str, *, encoding: Optional[str] = None, errors: Optional[str] = None) -> Any:
    """Runs a shell command as ``subprocess.getstatusoutput`` does."""
    done = run(
        cmd, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding=encoding, errors=errors
    )
    out = done.stdout or ""
    return done.returncode, out[:-1] if out.endswith("\n") else out


def getoutput(cmd: str, *, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
    """Runs a shell command as ``subprocess.getoutput`` does."""
    out: str = getstatusoutput(cmd, encoding=encoding, errors=errors)[1]
    return out
