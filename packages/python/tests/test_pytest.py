"""The plugin for pytest, in a pytest of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import List

import penfold
import pytest
from conftest import Tree

LEAKS = """
import subprocess
def test_clean():
    subprocess.run(["true"], check=True)
def test_leaks():
    subprocess.Popen("setsid sleep 1001 & (sleep 1002 &)", shell=True).wait()
"""


def run_pytest(tree: Tree, directory: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (directory / "test_it.py").write_text(text)
    source = os.path.dirname(os.path.dirname(os.path.abspath(penfold.__file__)))
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = {key: value for key, value in tree.env.items() if not key.startswith("PYTEST_")}
    # Without an installed package the plugin is named.
    plugin: List[str] = [] if _is_installed() else ["-p", "penfold._pytest"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *options, "test_it.py"]
    return subprocess.run(
        command, cwd=directory, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )


def _is_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return any(entry.group == "pytest11" for entry in distribution("penfold").entry_points)
    except PackageNotFoundError:
        return False


def test_without_the_plugin_the_processes_stay(tree: Tree, tmp_path: Path) -> None:
    done = run_pytest(tree, tmp_path, LEAKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(tree.names()) == ["sleep", "sleep"]


def test_with_penfold_leaks_are_named_with_their_test_and_ended(tree: Tree, tmp_path: Path) -> None:
    done = run_pytest(tree, tmp_path, LEAKS, "--penfold")
    assert done.returncode == 123, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "leak: sleep 1001" in done.stderr and "leak: sleep 1002" in done.stderr
    assert "test: test_it.py::test_leaks" in done.stderr
    assert not tree.alive()
    done = run_pytest(tree, tmp_path, LEAKS, "--penfold", "--penfold-leaks=warn")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not tree.alive()


def test_workers_of_xdist_are_guarded(tree: Tree, tmp_path: Path) -> None:
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed")
    done = run_pytest(tree, tmp_path, LEAKS, "--penfold", "-n", "2")
    assert done.returncode == 123, done.stdout + done.stderr
    assert "test: test_it.py::test_leaks" in done.stderr
    assert not tree.alive()


def test_leak_guard_fails_the_test_that_leaks_and_no_other(tree: Tree, tmp_path: Path) -> None:
    text = """
import os, subprocess, pytest
@pytest.fixture(scope="session")
def server():
    with subprocess.Popen(["sleep", "1003"]) as server:
        yield server
        server.kill()
@pytest.fixture(autouse=True)
def guarded(server, leak_guard):
    leak_guard.grace = 0.3
    leak_guard.allow("sleep 1004")
def test_clean(): subprocess.run(["true"], check=True)
def test_orphan(): subprocess.Popen("setsid sleep 1001 & (sleep 1002 &)", shell=True).wait()
def test_fork():
    if os.fork() == 0:
        import time; time.sleep(1000); os._exit(0)
def test_slow_end(): subprocess.Popen(["sleep", "0.1"])
def test_allowed(): subprocess.Popen(["sleep", "1004"])
"""
    done = run_pytest(tree, tmp_path, text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "5 passed, 2 errors" in done.stdout, done.stdout
    assert "the test left 2 processes: setsid sleep 1001" in done.stdout or "sleep 1001 (pid" in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert [line.split(" - ")[0].split()[1] for line in failed] == ["test_it.py::test_orphan", "test_it.py::test_fork"]
    # The one that was allowed is left, and nothing else.
    assert tree.names() == ["sleep"]


def test_another_program_is_not_replaced(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text("import sys, pytest; sys.exit(pytest.main(['-p', 'penfold._pytest', '--penfold']))")
    source = os.path.dirname(os.path.dirname(os.path.abspath(penfold.__file__)))
    environment = {**tree.env, "PYTHONPATH": source}
    command = [sys.executable, "runner.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    if "already registered" in done.stderr:
        pytest.skip("the package is installed")
    assert done.returncode == 4 and "works for the commands" in done.stderr, done.stdout + done.stderr
