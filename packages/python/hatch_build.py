"""Puts the `penfold` program into a wheel for one platform.

``PENFOLD_WHEEL_BINARY`` names the program, ``PENFOLD_WHEEL_PLATFORM`` the platform tag, such as ``manylinux_2_17_x86_64``.
Without them the wheel is for any platform, and uses ``$PENFOLD_BIN`` or ``$PATH``.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: "dict[str, Any]") -> None:
        binary = os.environ.get("PENFOLD_WHEEL_BINARY")
        if not binary or version == "editable":
            return
        platform = os.environ["PENFOLD_WHEEL_PLATFORM"]
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["force_include"][binary] = "penfold/bin/penfold"
