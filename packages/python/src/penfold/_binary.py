"""Finds the ``penfold`` program."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Optional

from ._errors import BinaryNotFound, UnsupportedPlatform

_packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "penfold")
_found: Optional[str] = None


def is_supported() -> bool:
    """Tells whether penfold works on this platform."""
    return sys.platform == "linux"


def find_binary() -> str:
    """Returns the path of the ``penfold`` program.

    These places are tried in order: this package, ``$PENFOLD_BIN``, ``$PATH``.
    """
    global _found
    if not is_supported():
        raise UnsupportedPlatform(f"penfold works on Linux only, and this platform is {sys.platform}")
    if _found is None:
        _found = _search()
    return _found


def _search() -> str:
    if os.access(_packaged, os.X_OK):
        return _packaged
    named = os.environ.get("PENFOLD_BIN")
    if named:
        if os.access(named, os.X_OK) and not os.path.isdir(named):
            return os.path.abspath(named)
        raise BinaryNotFound(f"$PENFOLD_BIN names {named!r}, which is not an executable file")
    found = shutil.which("penfold")
    # `python -m venv` puts the start script of this package on the path: it would find itself.
    if found and not _is_script(found):
        return os.path.abspath(found)
    raise BinaryNotFound(
        "there is no penfold program: this package has none for this machine, "
        "$PENFOLD_BIN is not set, and $PATH has none"
    )


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
