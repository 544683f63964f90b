"""Trees that outlive plain subprocess, and leave nothing with penfold."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import penfold
import pytest
from conftest import Tree, wait_until
from penfold._binary import find_binary

DAEMON = textwrap.dedent(
    """
    import os, sys, time
    if os.fork(): sys.exit()
    os.setsid()
    if os.fork(): sys.exit()
    os.closerange(0, 1024)
    time.sleep(600)
    """
)

#: Trees that leave something when their first process exits. None of them keeps the streams of the caller.
HOSTILE = {
    "setsid": ["sh", "-c", "setsid sleep 600 & sleep 0.1"],
    "background": ["sh", "-c", "sleep 600 & sleep 600 & sleep 0.1"],
    "double_fork": ["sh", "-c", "(sleep 600 &); (setsid sleep 600 &); sleep 0.1"],
    "nohup_disown": ["bash", "-c", "nohup sleep 600 >/dev/null 2>&1 & disown; sleep 0.1"],
    "ignores_term": ["bash", "-c", "(trap '' TERM; while :; do sleep 600; done) & sleep 0.1"],
    "daemon": [sys.executable, "-c", DAEMON],
    "stopped": ["sh", "-c", "sleep 600 & kill -STOP $!; sleep 0.1"],
}

QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.mark.parametrize("name", HOSTILE)
def test_leader_exits(tree: Tree, name: str) -> None:
    assert subprocess.run(HOSTILE[name], env=tree.env, **QUIET).returncode == 0
    wait_until("plain subprocess leaves it", tree.alive)
    tree.end()

    done = penfold.run(HOSTILE[name], env=tree.env, **QUIET)
    assert tree.names() == []
    assert done.returncode == 0 and done.report is not None
    assert done.report.cause == "exit" and done.report.verified and done.report.strays


@pytest.mark.parametrize("name", HOSTILE)
def test_timeout(tree: Tree, name: str) -> None:
    words = ["sh", "-c", '"$@" & wait; exec sleep 600', "sh", *HOSTILE[name]]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(words, env=tree.env, timeout=0.5, **QUIET)
    wait_until("plain subprocess leaves it", tree.alive)
    tree.end()

    with pytest.raises(penfold.TimeoutExpired) as raised:
        penfold.run(words, env=tree.env, timeout=0.5, **QUIET)
    assert tree.names() == []
    assert raised.value.report.verified and raised.value.report.cause == "kill"
    assert len(raised.value.report.ended) >= 2


def test_eight_spinners_with_a_timeout(tree: Tree) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["sh", "-c", script], env=tree.env, timeout=1, **QUIET)
    assert len(tree.alive()) == 8
    tree.end()

    begun = time.monotonic()
    with pytest.raises(penfold.TimeoutExpired) as raised:
        penfold.run(["sh", "-c", script], env=tree.env, timeout=1, **QUIET)
    assert tree.names() == []
    assert len(raised.value.report.ended) == 9
    assert 1 <= time.monotonic() - begun < 10


def test_timeouts_during_the_start(tree: Tree) -> None:
    for step in range(40):
        with pytest.raises(penfold.TimeoutExpired) as raised:
            penfold.run(["sh", "-c", "setsid sleep 600 & exec sleep 600"], env=tree.env, timeout=step / 5000, **QUIET)
        assert tree.names() == []
        assert raised.value.report.verified, raised.value.report


def _interpreter(tree: Tree, module: str, then: str) -> "subprocess.Popen[bytes]":
    script = f"""
        import sys, time, {module} as m
        p = m.Popen(["sh", "-c", "setsid sleep 600 & (sleep 600 &) ; exec sleep 600"])
        print("up", flush=True)
        {then}
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=tree.env,
    )
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    wait_until("the tree stands", lambda: tree.names().count("sleep") == 3)
    return process


def test_death_of_the_interpreter(tree: Tree) -> None:
    for module in ("subprocess", "penfold"):
        with _interpreter(tree, module, "time.sleep(600)") as process:
            process.kill()
        if module == "subprocess":
            assert tree.names().count("sleep") == 3
            tree.end()
        else:
            wait_until("the tree ends", lambda: tree.names() == [])


def test_death_of_the_interpreter_while_penfold_starts(tree: Tree, tmp_path: Path) -> None:
    gate, ran, shim = tmp_path / "gate", tmp_path / "ran", tmp_path / "shim"
    os.mkfifo(gate)
    # Says that it is there, waits at the gate, and becomes penfold.
    shim.write_text(f'#!/bin/sh\necho up\nread line <"{gate}"\nexec {shlex.quote(find_binary())} "$@"\n')
    shim.chmod(0o755)
    for is_dead in (False, True):
        script = f"import penfold, penfold._binary as b; b._found = {str(shim)!r}; penfold.run(['touch', {str(ran)!r}])"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=tree.env) as process:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            if is_dead:
                process.kill()
                process.wait()
            gate.write_text("go\n")
            # The pipe ends with the last process that has it.
            process.stdout.read()
        assert ran.exists() is not is_dead
        ran.unlink(missing_ok=True)


def test_exit_of_the_interpreter(tree: Tree) -> None:
    for module in ("subprocess", "penfold"):
        with _interpreter(tree, module, "sys.stdin.read()") as process:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0
        if module == "subprocess":
            assert tree.names().count("sleep") == 3
            tree.end()
        else:
            wait_until("the tree ends", lambda: tree.names() == [])


def test_end_of_the_thread_that_started_it(tree: Tree) -> None:
    started = []
    thread = threading.Thread(target=lambda: started.append(penfold.Popen(["sleep", "600"], env=tree.env)))
    thread.start()
    thread.join()
    with started[0] as process:
        with pytest.raises(penfold.TimeoutExpired):
            process.wait(0.2)
        assert tree.names() == ["sleep"]
        process.kill()
    assert tree.names() == []


def test_kill_reaches_what_left_the_group(tree: Tree) -> None:
    words = ["sh", "-c", "setsid sleep 600 & (sleep 600 &) ; exec sleep 600"]
    for module in (subprocess, penfold):
        with module.Popen(words, env=tree.env) as process:
            wait_until("the tree stands", lambda: tree.names().count("sleep") == 3)
            process.kill()
            assert process.wait() == -signal.SIGKILL
        if module is subprocess:
            assert tree.names().count("sleep") == 2
            tree.end()
    assert tree.names() == []
    assert process.report.verified and process.report.cause == "kill" and len(process.report.ended) == 3


def test_terminate_is_polite_to_the_whole_tree(tree: Tree, tmp_path: "os.PathLike[str]") -> None:
    handled = os.path.join(tmp_path, "handled")
    child = f"trap 'echo handled > {handled}; exit' TERM; echo up; while :; do sleep 0.02; done"
    words = ["sh", "-c", 'setsid sh -c "$0" & exec sleep 600', child]
    with penfold.Popen(words, env=tree.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait() == -signal.SIGTERM
    assert os.path.exists(handled)
    assert process.report.cause == "stop" and tree.names() == []


def test_terminate_kills_after_the_grace(tree: Tree) -> None:
    words = ["bash", "-c", "trap '' TERM; echo up; while :; do sleep 600; done"]
    with penfold.Popen(words, env=tree.env, stdout=subprocess.PIPE, grace=0.2) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        begun = time.monotonic()
        process.terminate()
        assert process.wait() == -signal.SIGKILL
        assert time.monotonic() - begun >= 0.2
    assert tree.names() == []


def test_sigkill_from_outside(tree: Tree) -> None:
    with penfold.Popen(["sh", "-c", "setsid sleep 600 & exec sleep 600"], env=tree.env) as process:
        wait_until("the tree stands", lambda: tree.names().count("sleep") == 2)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert tree.names() == []
    assert process.report.verified and process.report.cause == "owner"


def test_death_of_all_processes_of_penfold(tree: Tree) -> None:
    with penfold.Popen(["sh", "-c", "setsid sleep 600 & exec sleep 600"], env=tree.env) as process:
        wait_until("the tree stands", lambda: tree.names().count("sleep") == 2)
        supervisors = _children(process.pid)
        assert supervisors
        for pid in supervisors:
            os.kill(pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGSTOP)
        for pid in (*supervisors, process.pid):
            os.kill(pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.report.cause == "lost" and process.report.verified
        assert tree.names() == []


def _children(pid: int) -> "list[int]":
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def test_communicate_ends_although_a_stray_holds_the_pipe(tree: Tree) -> None:
    words = ["sh", "-c", "echo out; setsid sleep 600 & exit 0"]
    with subprocess.Popen(words, env=tree.env, stdout=subprocess.PIPE) as plain:
        with pytest.raises(subprocess.TimeoutExpired):
            plain.communicate(timeout=0.3)
        tree.end()
    done = penfold.run(words, env=tree.env, stdout=subprocess.PIPE)
    assert done.stdout == b"out\n" and tree.names() == []
