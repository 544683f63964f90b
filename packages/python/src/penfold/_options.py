"""The options of penfold, as keyword arguments and as flags."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Optional, Sequence, Union

from ._binary import find_binary

StrOrBytesPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Command = Union[StrOrBytesPath, Sequence[StrOrBytesPath]]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of penfold."""

    #: Seconds between the polite signal of ``terminate()`` and SIGKILL; the default of penfold is 10.
    grace: Optional[float] = None
    #: penfold itself ends the whole tree after so many seconds, with the return code 124.
    time_limit: Optional[float] = None
    #: ``auto``, ``cgroup``, ``pidns`` or ``subreaper``.
    contain: Optional[str] = None
    #: The name of the sandbox in `penfold ps`.
    name: Optional[str] = None
    #: The most memory of the whole tree: bytes, or text such as ``"2G"``.
    memory: Union[int, str, None] = None
    #: The most processes and threads of the whole tree.
    pids: Optional[int] = None
    #: The most processors of the whole tree, such as 1.5.
    cpus: Optional[float] = None
    #: Raise LeakError if the command exits with 0 but leaves processes.
    fail_on_leak: bool = False

    def flags(self) -> List[str]:
        """Returns the flags of `penfold run`."""
        flags: List[str] = []
        for flag, seconds in (("--grace", self.grace), ("--timeout", self.time_limit)):
            if seconds is not None:
                flags.append(f"{flag}={max(0, round(seconds * 1000))}ms")
        for flag, value in (
            ("--contain", self.contain),
            ("--name", self.name),
            ("--memory", self.memory),
            ("--pids", self.pids),
            ("--cpus", self.cpus),
        ):
            if value is not None:
                flags.append(f"{flag}={value}")
        return flags


_NAMES = tuple(field.name for field in dataclasses.fields(Options))


def take_options(keywords: Dict[str, Any]) -> Options:
    """Takes the options of penfold out of the keyword arguments."""
    return Options(**{name: keywords.pop(name) for name in _NAMES if name in keywords})


def words_of(args: Command, executable: Optional[StrOrBytesPath] = None, shell: bool = False) -> List[StrOrBytesPath]:
    """Returns the words of the command that ``subprocess`` would execute."""
    words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    if shell:
        if isinstance(args, os.PathLike):
            raise TypeError("path-like args is not allowed when shell is true")
        return [executable or "/bin/sh", "-c", *words]
    program = words[0]
    return [executable or program, *words[1:]]


def wrapped(words: Sequence[StrOrBytesPath], options: Options, status_fd: int) -> List[StrOrBytesPath]:
    """Returns the command line of penfold that runs the words."""
    # If this process dies before penfold has looked at it, nothing is started.
    owner = ["--on-owner-exit=kill", f"--owner={os.getpid()}"]
    flags = options.flags()
    return [find_binary(), "-q", "run", f"--status-fd={status_fd}", *owner, *flags, "--", *words]
