"""The report of an ended sandbox."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that penfold ended."""

    pid: int
    name: str
    #: The command line, where it was known.
    command: Optional[str]
    #: ``term``, ``kill`` and so on.
    how: str
    #: Whether the command had left the process behind.
    stray: bool

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> "Process":
        return cls(
            pid=data.get("pid", 0),
            name=data.get("name", ""),
            command=data.get("command"),
            how=data.get("how", ""),
            stray=bool(data.get("stray")),
        )


@dataclasses.dataclass(frozen=True)
class Report:
    """What penfold found and did at the end of a command. ``raw`` has all of it."""

    id: str
    #: Why the sandbox ended: ``exit``, ``signal``, ``stop``, ``kill``, ``timeout``, ``memory``, ``oom``, ``owner``,
    #: ``lost`` and so on.
    cause: str
    #: The exit code of the command; None if a signal ended the command, or if the end was not seen.
    exit_code: Optional[int]
    #: The signal that ended the command, if one did.
    exit_signal: Optional[int]
    #: The containment: ``cgroup``, ``pidns`` or ``subreaper``.
    level: str
    #: True if penfold has verified that nothing is left.
    verified: bool
    #: The processes that penfold ended.
    ended: Tuple[Process, ...]
    #: What is left, if ``verified`` is False.
    survivors: Tuple[Mapping[str, Any], ...]
    #: The time from the start to the verified end, in seconds.
    duration: float
    #: The report as penfold wrote it.
    raw: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def strays(self) -> Tuple[Process, ...]:
        """The processes that the command had left behind, which penfold ended."""
        return tuple(process for process in self.ended if process.stray)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Report":
        """Makes a report of the JSON that penfold writes."""
        end: Dict[str, int] = data.get("exit") or {}
        ended: List[Mapping[str, Any]] = data.get("ended", [])
        return cls(
            id=data.get("id", ""),
            cause=data.get("cause", "lost"),
            exit_code=end.get("code"),
            exit_signal=end.get("signal"),
            level=data.get("level", ""),
            verified=bool(data.get("verified")),
            ended=tuple(Process._of(process) for process in ended),
            survivors=tuple(data.get("survivors", [])),
            duration=data.get("duration_ms", 0) / 1000,
            raw=data,
        )
