"""The plugin for pytest, in a pytest of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import penfold
import pytest
from conftest import Tree, wait_until

LEAKS = """
import subprocess
def test_clean():
    subprocess.run(["true"], check=True)
def test_leaks():
    subprocess.Popen("setsid sleep 1001 & (sleep 1002 &)", shell=True).wait()
"""


def environment_of(tree: Tree) -> Dict[str, str]:
    source = os.path.dirname(os.path.dirname(os.path.abspath(penfold.__file__)))
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = {key: value for key, value in tree.env.items() if not key.startswith("PYTEST_")}
    return {**environment, "PYTHONPATH": path}


def pytest_command(*options: str) -> List[str]:
    # Without an installed package the plugin is named.
    plugin = [] if _is_installed() else ["-p", "penfold._pytest"]
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *options, "test_it.py"]


def run_pytest(tree: Tree, directory: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (directory / "test_it.py").write_text(text)
    return subprocess.run(
        pytest_command(*options), cwd=directory, env=environment_of(tree), capture_output=True, text=True, timeout=60
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
import os, subprocess, time, pytest
@pytest.fixture(scope="session")
def server():
    # It starts a worker on SIGUSR1.
    serves = 'trap "sleep 1005 & " USR1; while :; do sleep 0.05; done'
    with subprocess.Popen(["sh", "-c", serves], start_new_session=True) as server:
        yield server
        os.killpg(server.pid, 9)
@pytest.fixture(autouse=True)
def guarded(server, leak_guard):
    leak_guard.grace = 0.3
    leak_guard.allow("sleep 1004")
def test_clean(): subprocess.run(["true"], check=True)
def test_orphan(): subprocess.Popen("setsid sleep 1001 & (sleep 1002 &)", shell=True).wait()
def test_fork():
    if os.fork() == 0:
        import time; time.sleep(1000); os._exit(0)
def test_worker_of_the_server(server): subprocess.run(["kill", "-USR1", str(server.pid)], check=True); time.sleep(0.2)
def test_helper_of_python():
    import multiprocessing
    multiprocessing.get_context("spawn").Lock()
def test_slow_end(): subprocess.Popen(["sleep", "0.1"])
def test_allowed(): subprocess.Popen(["sleep", "1004"])
"""
    done = run_pytest(tree, tmp_path, text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "7 passed, 2 errors" in done.stdout, done.stdout
    assert "the test left 2 processes: setsid sleep 1001" in done.stdout or "sleep 1001 (pid" in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert [line.split(" - ")[0].split()[1] for line in failed] == ["test_it.py::test_orphan", "test_it.py::test_fork"]
    # The one that was allowed is left, and nothing else.
    wait_until("all else has ended", lambda: tree.names() == ["sleep"])


def test_the_same_test_in_another_run_is_left_alone(tree: Tree, tmp_path: Path) -> None:
    text = """
import subprocess, time
def test_it(leak_guard):
    leak_guard.grace = 0
    open("up", "w").close()
    subprocess.run(["sh", "-c", "until [ -e go ]; do sleep 0.02; done"], check=True)
"""
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        directory.mkdir()
        (directory / "test_it.py").write_text(text)
    with subprocess.Popen(pytest_command(), cwd=second, env=environment_of(tree), stdout=subprocess.DEVNULL) as other:
        wait_until("the other test runs", (second / "up").exists)
        (first / "go").touch()
        done = subprocess.run(pytest_command(), cwd=first, env=environment_of(tree), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        (second / "go").touch()
        assert other.wait(timeout=60) == 0


def test_input_and_options_of_python_stay(tree: Tree, tmp_path: Path) -> None:
    text = "import sys\ndef test_it():\n    assert sys.flags.dev_mode and sys.warnoptions\n    breakpoint()\n"
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-X", "dev", "-W", "ignore::UserWarning", *pytest_command()[1:], "--penfold"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment_of(tree), input="p 40 + 2\nc\n", capture_output=True, text=True, timeout=60
    )
    if sys.version_info >= (3, 10):
        assert done.returncode == 0 and "42" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["runner.py", "__main__.py"])
def test_another_program_is_not_replaced(tree: Tree, tmp_path: Path, name: str) -> None:
    plugin = [] if _is_installed() else ["-p", "penfold._pytest"]
    (tmp_path / name).write_text(f"import sys, pytest; sys.exit(pytest.main({[*plugin, '--penfold']}))")
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, env=environment_of(tree), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4 and "works for the commands" in done.stderr, done.stdout + done.stderr


HOME = """
import os, subprocess
def test_clean(penfold_home):
    assert penfold_home.parent.samefile(os.environ["PENFOLD_TEST_HOME_BASE"])
    (penfold_home / "file").write_text("x")
def test_process(penfold_home):
    subprocess.Popen("setsid sleep 1001 &", shell=True, cwd=penfold_home).wait()
def test_sandbox(penfold_home):
    from penfold._binary import find_binary
    run = [find_binary(), "--root", str(penfold_home / "state"), "run", "-d", "sleep", "1002"]
    subprocess.run(run, check=True)
"""


def test_what_uses_the_home_of_a_test_ends_with_the_test(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    monkeypatch.setenv("PENFOLD_TEST_HOME_BASE", str(base))
    done = run_pytest(tree, tmp_path, HOME)
    assert done.returncode == 1 and "3 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR test_it.py::test_sandbox" in done.stdout and "the test left 1 sandbox: " in done.stdout
    assert tree.names() == []
    assert list(base.iterdir()) == []
