"""The names of this package where penfold does not work: they import, and raise ``UnsupportedPlatform`` when used."""

from __future__ import annotations

from subprocess import CompletedProcess
from typing import Any, NoReturn

from ._binary import find_binary


def run(*args: Any, **keywords: Any) -> NoReturn:
    """Raises ``UnsupportedPlatform``."""
    find_binary()
    raise AssertionError("this platform is supported")


async def create_subprocess_exec(*args: Any, **keywords: Any) -> NoReturn:
    """Raises ``UnsupportedPlatform``."""
    run()


call = check_call = check_output = getoutput = getstatusoutput = run
create_subprocess_shell = create_subprocess_exec


class Popen:
    """Raises ``UnsupportedPlatform``."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        run()


class Process(Popen):
    """Raises ``UnsupportedPlatform``."""


__all__ = ["CompletedProcess", "Popen", "Process", "run"]
