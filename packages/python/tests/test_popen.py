"""What the command sees and what the caller gets, compared with subprocess."""

from __future__ import annotations

import concurrent.futures
import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings

import penfold
import pytest
from penfold import _status
from conftest import Tree, wait_until

BOTH = [subprocess, penfold]


def same(*args: object, **keywords: object) -> "subprocess.CompletedProcess[object]":
    """Runs with both, and returns what is the same."""
    plain, ours = [module.run(*args, **keywords) for module in BOTH]  # type: ignore[call-overload]
    assert (plain.args, plain.returncode, plain.stdout, plain.stderr) == (
        ours.args,
        ours.returncode,
        ours.stdout,
        ours.stderr,
    )
    assert ours.report.verified
    return ours


def test_streams_and_codes() -> None:
    assert same(["sh", "-c", "cat; echo err >&2; exit 5"], input=b"in", capture_output=True).stdout == b"in"
    assert same(["cat"], input="é\n", text=True, capture_output=True, encoding="utf-8").stdout == "é\n"
    same("echo $0 $1", shell=True, capture_output=True)
    same(["echo $0 $1", "a", "b"], shell=True, capture_output=True)
    same("echo $BASH_VERSION", shell=True, executable="/bin/bash", capture_output=True)
    same(["sh", "-c", "kill -9 $$"])
    same(["sh", "-c", "kill -TERM $$"])
    same([b"echo", b"\xff"], capture_output=True)
    same("true")
    big = b"x" * (3 << 20)
    assert same(["cat"], input=big, stdout=subprocess.PIPE).stdout == big
    for code in (0, 1, 119, 120, 123, 124, 125, 126, 127, 137, 255):
        assert same(["sh", "-c", f"exit {code}"]).returncode == code


def test_what_the_command_inherits(tmp_path: "os.PathLike[str]") -> None:
    show = "import os, sys, signal; print(os.getcwd(), sorted(k for k in os.environ if not k.startswith('PENFOLD')), oct(os.umask(0)), signal.getsignal(signal.SIGPIPE))"
    words = [sys.executable, "-c", show]
    same(words, capture_output=True, cwd=tmp_path)
    same(words, capture_output=True, env={"A": "b", "PATH": os.environ["PATH"]})
    same(words, capture_output=True, umask=0o027)
    same(words, capture_output=True, restore_signals=False)


def test_descriptors() -> None:
    words = ["sh", "-c", "ls /proc/self/fd"]
    read, write = os.pipe()
    try:
        same(words, capture_output=True)
        same(words, capture_output=True, pass_fds=(write,))
        os.set_inheritable(write, True)
        same(words, capture_output=True, close_fds=False)
        done = penfold.run(["bash", "-c", f"echo said >&{write}"], pass_fds=(write,))
        assert done.returncode == 0 and os.read(read, 100) == b"said\n"
    finally:
        os.close(read)
        os.close(write)


def test_missing_program() -> None:
    for words in (["/no/such/program"], ["no-such-program"], ["./no-such-program", "x"]):
        errors = []
        for module in BOTH:
            with pytest.raises(FileNotFoundError) as raised:
                module.Popen(words, stdout=subprocess.PIPE)
            errors.append((raised.value.errno, raised.value.filename, str(raised.value)))
        assert errors[0] == errors[1]


def test_program_that_cannot_be_executed(tmp_path: "os.PathLike[str]") -> None:
    plain = os.path.join(tmp_path, "plain")
    with open(plain, "w") as file:
        file.write("no program\n")
    os.chmod(plain, 0o644)
    for program, expected in ((plain, errno.EACCES), (str(tmp_path), errno.EACCES)):
        for module in BOTH:
            with pytest.raises(OSError) as raised:
                module.run([program])
            assert (raised.value.errno, raised.value.filename) == (expected, program), module


def test_script_without_an_interpreter_is_one_of_the_shell(tmp_path: "os.PathLike[str]") -> None:
    script = os.path.join(tmp_path, "script")
    with open(script, "w") as file:
        file.write("exit 3\n")
    os.chmod(script, 0o755)
    with pytest.raises(OSError) as raised:
        subprocess.run([script])
    assert raised.value.errno == errno.ENOEXEC
    assert penfold.run([script]).returncode == 3


def test_missing_directory() -> None:
    for module in BOTH:
        with pytest.raises(FileNotFoundError) as raised:
            module.run(["true"], cwd="/no/such/directory")
        assert raised.value.filename == "/no/such/directory"


def test_failed_start_says_nothing_on_standard_error() -> None:
    script = "import penfold\ntry: penfold.run(['/no/such'])\nexcept FileNotFoundError: print('good')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.stdout, done.stderr) == (b"good\n", b"")


def test_arguments_that_are_wrong() -> None:
    for module in BOTH:
        with pytest.raises(ValueError):
            module.run(["a\0b"])
        with pytest.raises(TypeError):
            module.run(["true"], no_such_argument=1)
        with pytest.raises(ValueError):
            module.run(["true"], input=b"", stdin=subprocess.PIPE)
    with pytest.raises(ValueError, match="preexec_fn"):
        penfold.run(["true"], preexec_fn=os.getpid)


def test_popen_is_one_of_subprocess() -> None:
    with penfold.Popen(["cat"], stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        assert isinstance(process, subprocess.Popen) and process.args == ["cat"]
        assert isinstance(process.stdout, io.TextIOWrapper) and process.stdin is not None
        assert process.poll() is None and process.returncode is None and process.report is None
        process.stdin.write("line\n")
        assert process.stdout.readline() == "line\n"
        with pytest.raises(penfold.TimeoutExpired):
            process.wait(timeout=0.05)
        out, _ = process.communicate("more\n")
        assert out == "more\n" and process.poll() == 0
        process.kill()
        assert process.wait() == 0


def test_poll_until_the_end(tree: Tree) -> None:
    process = penfold.Popen(["sh", "-c", "setsid sleep 600 & sleep 0.1; exit 7"], env=tree.env)
    wait_until("it ends", lambda: process.poll() is not None)
    assert process.returncode == 7 and tree.names() == [] and process.report.strays


def test_positional_arguments() -> None:
    process = penfold.Popen("echo $0", -1, "/bin/bash", None, subprocess.PIPE, None, None, True, True)
    out, _ = process.communicate()
    assert out == b"/bin/bash\n"


def test_signals_to_the_command() -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        # A handler may interrupt the line before: `print` would be called again within itself.
        def handle(number, _): os.write(1, signal.Signals(number).name.encode() + b"\\n")
        for name in sys.argv[1:]:
            signal.signal(getattr(signal, name), handle)
        os.write(1, b"up\\n")
        while True: signal.pause()
        """
    )
    names = ["SIGINT", "SIGHUP", "SIGUSR1", "SIGQUIT", "SIGWINCH", "SIGCONT", "SIGABRT"]
    with penfold.Popen([sys.executable, "-c", script, *names], stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        for name in names:
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"{name}\n"
        process.send_signal(signal.SIGSTOP)
        state = f"/proc/{process.command_pid}/stat"
        wait_until("it is stopped", lambda: open(state).read().rpartition(")")[2].split()[0] == "T")
        process.kill()
        assert process.wait() == -9


def test_check() -> None:
    for module in BOTH:
        with pytest.raises(subprocess.CalledProcessError) as raised:
            module.run("echo out; exit 3", shell=True, check=True, capture_output=True)
        assert (raised.value.returncode, raised.value.output, raised.value.stderr) == (3, b"out\n", b"")
        assert module.check_output(["echo", "a"]) == b"a\n" and module.call(["false"]) == 1
        assert module.check_call(["true"]) == 0
        assert module.getstatusoutput("echo a; exit 2") == (2, "a") and module.getoutput("echo b") == "b"


def test_output_before_a_timeout() -> None:
    for module in BOTH:
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            module.run("echo early; exec sleep 600", shell=True, capture_output=True, timeout=0.5)
        assert raised.value.output == b"early\n", module


def test_leak_error(tree: Tree) -> None:
    words = ["sh", "-c", "echo out; setsid sleep 600 & sleep 0.1"]
    with pytest.raises(penfold.LeakError, match="sleep") as raised:
        penfold.run(words, env=tree.env, fail_on_leak=True, capture_output=True)
    assert raised.value.stdout == b"out\n" and raised.value.returncode == 0
    assert [process.name for process in raised.value.report.strays] == ["sleep"]
    with pytest.raises(penfold.LeakError):
        penfold.Popen(words, env=tree.env, fail_on_leak=True, stdout=subprocess.DEVNULL).wait()
    penfold.run(["true"], fail_on_leak=True)
    assert tree.names() == []


def test_report() -> None:
    report = penfold.run(["sh", "-c", "exit 4"]).report
    assert report is not None and len(report.id) == 12
    assert (report.exit_code, report.exit_signal, report.cause, report.strays) == (4, None, "exit", ())
    assert report.level in ("cgroup", "subreaper") and report.raw["schema"] == 1 and report.duration < 20
    report = penfold.run(["sh", "-c", "kill -USR1 $$"]).report
    assert report is not None and (report.exit_code, report.exit_signal, report.cause) == (None, 10, "signal")


def test_options() -> None:
    done = penfold.run(["sleep", "600"], time_limit=0.1)
    assert done.returncode == 124 and done.report is not None and done.report.cause == "timeout"
    done = penfold.run(["true"], contain="subreaper", name="of-python", grace=1.5)
    assert done.report is not None and (done.report.level, done.report.raw["name"]) == ("subreaper", "of-python")
    with pytest.raises(penfold.StartError, match="contain"):
        penfold.run(["true"], contain="nonsense", capture_output=True)


def test_limit_of_processes() -> None:
    try:
        done = penfold.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 0.1 & done; wait"], pids=4, stderr=-1)
    except penfold.StartError as error:
        pytest.skip(f"no limits here: {error}")
    assert done.returncode != 0 and b"fork" in done.stderr.lower()


def test_server_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENFOLD_HOST", "unix:/no/such/socket")
    assert penfold.run(["printenv", "PENFOLD_HOST"], capture_output=True).stdout == b"unix:/no/such/socket\n"


def test_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    done = penfold.run(["id", "-u"], user=65534, group=65534, extra_groups=[], capture_output=True, cwd="/")
    assert (done.returncode, done.stdout) == (0, b"65534\n"), done


def test_new_session() -> None:
    script = "import os; print(os.getsid(0))"
    done = penfold.run([sys.executable, "-c", script], capture_output=True, start_new_session=True)
    assert int(done.stdout) != os.getsid(0)


def test_many_at_once() -> None:
    def one(number: int) -> int:
        return penfold.run(["sh", "-c", f"setsid sleep 600 & exit {number}"]).returncode

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(48))) == list(range(48))


def test_long_report() -> None:
    script = "i=0; while [ $i -lt 400 ]; do sleep 600 & i=$((i+1)); done; sleep 0.3"
    report = penfold.run(["sh", "-c", script]).report
    assert report is not None and len(report.strays) == 400


def test_closed_standard_streams() -> None:
    script = "import os, penfold; os.close(0); os.close(1); print(penfold.run(['sh', '-c', 'exit 6']).returncode, file=__import__('sys').stderr)"
    done = subprocess.run([sys.executable, "-c", script], stderr=-1, stdin=subprocess.DEVNULL)
    assert done.stderr == b"6\n"


def test_abandoned_process(tree: Tree) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        process = penfold.Popen(["sleep", "600"], env=tree.env)
        pid = process.pid
        del process
    assert tree.names() == ["sleep"]
    os.kill(pid, signal.SIGTERM)
    wait_until("it ends", lambda: tree.names() == [])
    # subprocess keeps what was abandoned until the next start after its end.
    wait_until("it is reaped", lambda: penfold.run(["true"]) and not os.path.exists(f"/proc/{pid}"))


def test_several_threads_wait(tree: Tree) -> None:
    for _ in range(15):
        process = penfold.Popen(["sh", "-c", "sleep 0.05; exit 3"], env=tree.env)
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            codes = [future.result() for future in [threads.submit(process.wait) for _ in range(4)]]
        assert codes == [3, 3, 3, 3]


def test_output_without_input_is_text_where_it_was_asked_for() -> None:
    assert penfold.check_output(["cat"], input=None, universal_newlines=True) == ""
    assert penfold.check_output(["cat"], input=None) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a command as another user")
def test_a_lost_sandbox_of_another_user_is_ended_before_it_counts_as_gone(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as runtime:
        os.chown(runtime, 65534, 65534)
        env = {**tree.env, "XDG_RUNTIME_DIR": runtime}
        words = ["sh", "-c", "setsid sleep 987 & exec sleep 986"]
        process = penfold.Popen(words, env=env, user=65534, contain="subreaper")
        wait_until("the tree stands", lambda: tree.names() == ["sleep", "sleep"])
        assert os.listdir(runtime) == ["penfold"]
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            supervisor = int(file.read().split()[0])
        # The supervisor dies first: the death of `penfold run` would continue it, and it would end the tree itself.
        for pid in (process.pid, supervisor):
            os.kill(pid, signal.SIGSTOP)
        for pid in (supervisor, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        assert not tree.alive()
        assert process.report is not None and process.report.verified and process.report.cause == "lost"


def test_start_does_not_wait_for_a_pipe_that_another_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penfold._status.PATIENCE", 0.1)
    status = _status.Status()
    # This process keeps the end that penfold writes to, as a child would that was forked at the wrong moment.
    with subprocess.Popen(["true"]) as launcher:
        waiter = threading.Thread(target=status.wait_running, args=(launcher.pid,), daemon=True)
        waiter.start()
        waiter.join(20)
        assert not waiter.is_alive()
    assert status.is_over and not status.has_run
    status.close()
