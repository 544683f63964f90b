"""Runs the ``penfold`` program of this package: ``python -m penfold``."""

from __future__ import annotations

import os
import sys

from ._binary import find_binary
from ._errors import Error


def main() -> int:
    try:
        binary = find_binary()
    except Error as error:
        print(f"penfold: {error}", file=sys.stderr)
        return 125
    os.execv(binary, ["penfold", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
