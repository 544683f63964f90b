"""The package itself: the program it finds, and where it does not work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from typing import Any, List

import penfold
import pytest


def python(script: str, **env: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", script]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **env})


def test_binary() -> None:
    binary = penfold.find_binary()
    assert os.path.isabs(binary) and os.access(binary, os.X_OK)
    version = subprocess.run([binary, "version"], capture_output=True, text=True).stdout
    assert penfold.__version__ in version


def test_other_platforms() -> None:
    script = """
        import sys; sys.platform = "darwin"
        import penfold, asyncio
        assert not penfold.is_supported()
        for use in (penfold.run, penfold.Popen, penfold.check_output,
                    lambda *words: asyncio.run(penfold.create_subprocess_exec(*words))):
            try: use(["true"])
            except penfold.UnsupportedPlatform as error: print(error)
    """
    import textwrap

    done = python(textwrap.dedent(script))
    assert done.stdout.splitlines() == ["penfold works on Linux only, and this platform is darwin"] * 4, done.stderr


def _without_packaged(script: str) -> str:
    return f"import penfold._binary as b; b._packaged = '/no/such'\nimport penfold\n{script}"


def test_no_binary(tmp_path: "os.PathLike[str]") -> None:
    script = "try: penfold.run(['true'])\nexcept penfold.BinaryNotFound as error: print(error)"
    done = python(_without_packaged(script), PENFOLD_BIN="", PATH=str(tmp_path))
    assert "no penfold program" in done.stdout, done
    done = python(_without_packaged(script), PENFOLD_BIN="/no/such/file")
    assert "'/no/such/file'" in done.stdout, done


def test_binary_of_the_variable_and_of_the_path(tmp_path: "os.PathLike[str]") -> None:
    os.symlink(penfold.find_binary(), os.path.join(tmp_path, "penfold"))
    script = "print(penfold.find_binary(), penfold.run(['/bin/true']).returncode)"
    expected = f"{tmp_path}/penfold 0\n"
    assert python(_without_packaged(script), PENFOLD_BIN=f"{tmp_path}/penfold").stdout == expected
    assert python(_without_packaged(script), PENFOLD_BIN="", PATH=str(tmp_path)).stdout == expected


def _stand_in(tmp_path: Any, lines: List[Any], code: int) -> str:
    """A program that writes these lines in place of penfold."""
    path = os.path.join(tmp_path, "stand-in")
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with open(path, "w") as file:
        file.write(f"#!{sys.executable}\nimport os, sys\n")
        file.write("fd = int(next(w for w in sys.argv if w.startswith('--status-fd=')).partition('=')[2])\n")
        file.write(f"os.write(fd, {text.encode()!r})\nsys.exit({code})\n")
    os.chmod(path, 0o755)
    return path


def test_not_verified(tmp_path: "os.PathLike[str]") -> None:
    report = {"id": "0" * 12, "cause": "exit", "exit": {"code": 3}, "verified": False, "survivors": [{"pid": 42}]}
    lines = [{"event": "running", "id": "0" * 12, "pid": 1}, {"event": "ended", "report": report}]
    script = """
import subprocess
for use in (lambda: penfold.run(["x"]), lambda: penfold.Popen(["x"]).wait()):
    try: use()
    except penfold.NotVerified as error: print(error.returncode, error.report.survivors, error)
p = penfold.Popen(["x"])
while p.poll() is None: pass
print(p.returncode, p.report.verified)
"""
    done = python(_without_packaged(script), PENFOLD_BIN=_stand_in(tmp_path, lines, 120))
    first, second, third = done.stdout.splitlines()
    assert first == second and first.startswith("3 ({'pid': 42},) ['x'] has ended, but penfold could not verify"), done
    assert third == "3 False"


def test_start_without_a_report(tmp_path: "os.PathLike[str]") -> None:
    script = "try: penfold.run(['x'])\nexcept penfold.StartError as error: print(error)"
    done = python(_without_packaged(script), PENFOLD_BIN=_stand_in(tmp_path, [], 125))
    assert done.stdout == "cannot run 'x': penfold ended with 125 before the command started\n", done


def test_module_runs_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "penfold", "run", "--", "sh", "-c", "exit 9"])
    assert done.returncode == 9


def test_installed_script() -> None:
    script = os.path.join(sysconfig.get_path("scripts"), "penfold")
    if not os.path.exists(script):
        pytest.skip("the package is not installed")
    done = subprocess.run([script, "run", "--", "sh", "-c", "exit 9"])
    assert done.returncode == 9
