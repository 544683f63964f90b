"""python drive.py sync|async [protobuf]

Drives `penfold serve --api e2b` with the published Python SDK, whose variables (E2B_API_URL and others) say where the server
is. PENFOLD_TEST_TOKENS is the address of a second server, which knows the key E2B_API_KEY alone. Prints a line for each check,
and the numbers. The same checks are for both kinds of the SDK: `settle` waits for what the asynchronous kind returns. With
`protobuf`, the SDK's client of the Connect protocol sends protobuf in gzip and not JSON.
"""

import asyncio
import inspect
import logging
import os
import random
import signal
import sys
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

import e2b

IS_ASYNC = sys.argv[1] == "async"
if "protobuf" in sys.argv:
    from connectrpc.codec import proto_binary_codec
    from connectrpc.compression.gzip import GzipCompression
    from e2b.envd import client_async, client_sync

    for kind in (client_async, client_sync):
        kind.ENVD_JSON_CODEC = proto_binary_codec()
        kind.ENVD_RPC_COMPRESSION = {"send_compression": GzipCompression(), "accept_compression": (GzipCompression(),)}
Sandbox = e2b.AsyncSandbox if IS_ASYNC else e2b.Sandbox
SERVER = os.environ["E2B_SANDBOX_URL"]
# The sandboxes of this program.
RUN = {"run": f"{os.getpid()}-{random.randrange(10**9)}"}
PATIENCE = 20
# The time for one check; `signal` interrupts also calls of the kind of the SDK that blocks.
LIMIT = 60
checks = []


class Skip(Exception):
    """Tells why a check cannot be made."""


def check(name):
    """Makes a function a check."""

    def register(function):
        checks.append((name, function))
        return function

    return register


async def settle(value):
    """Waits for the result of a call."""
    return await value if inspect.isawaitable(value) else value


async def until(what, holds):
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        await asyncio.sleep(0.01)


async def refusal(value, kind=Exception):
    """Returns the error that a call must end with; `value` is a function, since the other kind of the SDK raises at once."""
    try:
        given = await settle(value())
    except kind as error:
        return error
    raise AssertionError(f"no error, but {given!r}")


def living(number):
    """Counts the processes `sleep NUMBER` of this host, which is not the view of a sandbox."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += place.read_bytes() == f"sleep\0{number}\0".encode()
        except OSError:
            pass
    return found


# The processes of `tree`, of which only the last is in the session of the command and waited for.
TREE = 6


def tree():
    """Returns a number and a script: three levels of shells, whose daemons have sessions of their own, a double fork, and nohup."""
    n = f"9{random.randrange(10**9):09}"
    daemons = f"sleep {n} & setsid sleep {n} & nohup sleep {n} >/dev/null 2>&1 & (setsid sh -c 'sleep {n} & sleep {n}; true' &)"
    return n, f"{daemons}; sh -c 'sh -c \"sleep {n}; true\"; true'"


class Command:
    """A command in the background, or a terminal, and its output so far."""

    def __init__(self):
        self.said = b""
        self.handle = self.outputs = None

    def take(self, chunk):
        self.said += chunk.encode() if isinstance(chunk, str) else bytes(chunk)

    @staticmethod
    async def run(sandbox, script, **options):
        """Starts a command."""
        command = Command()
        if IS_ASYNC:
            options["on_stdout"] = command.take
        command.handle = await settle(sandbox.commands.run(script, background=True, **options))
        return command

    @staticmethod
    async def terminal(sandbox, size):
        """Starts a shell on a terminal."""
        command = Command()
        options = {"on_data": command.take} if IS_ASYNC else {}
        command.handle = await settle(sandbox.pty.create(size, **options))
        return command

    @staticmethod
    async def connect(sandbox, pid):
        """Connects to a command that runs."""
        command = Command()
        options = {"on_stdout": command.take} if IS_ASYNC else {}
        command.handle = await settle(sandbox.commands.connect(pid, **options))
        return command

    async def hear(self, wanted):
        """Waits for output."""
        wanted = wanted.encode()
        if IS_ASYNC:
            return await until(f"{wanted} in {self.said}", lambda: wanted in self.said)
        self.outputs = self.outputs or iter(self.handle)
        while wanted not in self.said:
            out, _, pty = next(self.outputs)
            self.take(out or pty or b"")

    async def wait(self):
        """Waits for the end."""
        return await settle(self.handle.wait())


def has(function, parameter):
    """Tells whether a function of this version takes a parameter."""
    return parameter in inspect.signature(function).parameters


def stdin_of(sandbox):
    """The option that lets a command have an input; old versions always do."""
    return {"stdin": True} if has(sandbox.commands.run, "stdin") else {}


def fetch(url, data=None, headers=None):
    """Asks without the SDK; returns the status and the body."""
    request = urllib.request.Request(url, data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def listed(**query):
    """Lists sandboxes, one a page; returns their ids and the number of pages."""
    pages = Sandbox.list(query=e2b.SandboxQuery(**query), limit=1)
    ids, number = [], 0
    while pages.has_next:
        ids += [one.sandbox_id for one in await settle(pages.next_items())]
        number += 1
    return ids, number


@check("a sandbox has its time limit, metadata and variables")
async def create(sandbox):
    info = await settle(sandbox.get_info())
    assert info.sandbox_id == sandbox.sandbox_id and info.metadata == {**RUN, "kind": "shared"}, info
    assert info.state == e2b.SandboxState.RUNNING and 500 < (info.end_at - info.started_at).total_seconds() < 700, info
    said = await settle(sandbox.commands.run("echo $OF_SANDBOX"))
    assert said.stdout == "value\n", said
    assert await settle(sandbox.is_running())


@check("a list is filtered and comes in pages")
async def list_of_sandboxes(sandbox):
    other = await settle(Sandbox.create(metadata={**RUN, "kind": "other & more"}))
    ids, pages = await listed(metadata=RUN)
    assert sorted(ids) == sorted([sandbox.sandbox_id, other.sandbox_id]) and pages == 2, (ids, pages)
    assert (await listed(metadata={**RUN, "kind": "other & more"}))[0] == [other.sandbox_id]
    assert (await listed(metadata={**RUN, "kind": "none"}))[0] == []
    assert await settle(other.kill()) is True
    assert (await listed(metadata=RUN))[0] == [sandbox.sandbox_id]


@check("run: output, exit code, variables, directory, user")
async def run(sandbox):
    said = await settle(sandbox.commands.run("echo out; echo err >&2; echo $A; pwd; whoami", envs={"A": "b"}, cwd="/etc", user="user"))
    assert (said.stdout, said.stderr, said.exit_code) == ("out\nb\n/etc\nuser\n", "err\n", 0), said
    error = await refusal(lambda: sandbox.commands.run("echo bad; exit 7"), e2b.CommandExitException)
    assert (error.stdout, error.exit_code) == ("bad\n", 7), error
    await refusal(lambda: sandbox.commands.run("true", user="nobody-here"))
    await refusal(lambda: sandbox.commands.run("true", cwd="/no/such/directory"))


@check("a command in the background: stream, input, end of input")
async def background(sandbox):
    command = await Command.run(sandbox, "echo up; while read line; do echo got $line; done; echo end", **stdin_of(sandbox))
    await command.hear("up\n")
    await settle(sandbox.commands.send_stdin(command.handle.pid, "one\n"))
    await command.hear("got one\n")
    if not hasattr(sandbox.commands, "close_stdin"):
        assert await settle(command.handle.kill()) is True
        raise Skip("this version has no close_stdin")
    await settle(sandbox.commands.close_stdin(command.handle.pid))
    done = await command.wait()
    assert (done.stdout, done.exit_code) == ("up\ngot one\nend\n", 0), done


@check("commands are listed, and a second client connects to one")
async def connect(sandbox):
    command = await Command.run(sandbox, "echo up; read line; echo got $line", envs={"MARK": RUN["run"]}, **stdin_of(sandbox))
    await command.hear("up\n")
    running = [one for one in await settle(sandbox.commands.list()) if one.pid == command.handle.pid]
    assert len(running) == 1 and running[0].envs["MARK"] == RUN["run"] and "read line" in running[0].args[-1], running
    second = await settle(Sandbox.connect(sandbox.sandbox_id))
    # What 2.10 returns does not say which sandbox it means.
    second = second if "E2b-Sandbox-Id" in second.connection_config.sandbox_headers else sandbox
    same = await Command.connect(second, command.handle.pid)
    await settle(second.commands.send_stdin(command.handle.pid, "it\n"))
    await same.hear("got it\n")
    assert (await same.wait()).exit_code == 0
    assert (await command.wait()).stdout == "up\ngot it\n"
    assert command.handle.pid not in [one.pid for one in await settle(sandbox.commands.list())]


@check("E2B#1034: kill() of a command leaves none of 6 processes")
async def kill_of_a_command(sandbox):
    number, script = tree()
    command = await Command.run(sandbox, script)
    await until("the tree lives", lambda: living(number) == TREE)
    assert await settle(command.handle.kill()) is True
    assert living(number) == 0, living(number)
    assert await settle(sandbox.commands.kill(command.handle.pid)) is False
    error = await refusal(command.wait, e2b.CommandExitException)
    assert error.exit_code != 0, error


@check("E2B#1034, the control: a signal to the first process alone leaves all 6")
async def kill_of_a_leader(sandbox):
    number, script = tree()
    command = await Command.run(sandbox, script)
    await until("the tree lives", lambda: living(number) == TREE)
    await settle(sandbox.commands.run(f"kill -9 {command.handle.pid}"))
    await refusal(command.wait, e2b.CommandExitException)
    assert living(number) == TREE, living(number)
    assert await settle(sandbox.commands.kill(command.handle.pid)) is True
    assert living(number) == 0, living(number)


@check("the time limit of a command leaves none of 6 processes")
async def time_limit(sandbox):
    number, script = tree()
    command = await Command.run(sandbox, script, timeout=2)
    await until("the tree lives", lambda: living(number) == TREE)
    await refusal(command.wait, e2b.TimeoutException)
    await until("the tree is gone", lambda: living(number) == 0)


@check("a terminal: input, size, kill")
async def terminal(sandbox):
    size = lambda rows, cols: e2b.PtySize(rows=rows, cols=cols)
    shell = await Command.terminal(sandbox, size(31, 117))
    send = lambda text: settle(sandbox.pty.send_stdin(shell.handle.pid, text.encode()))
    await send("echo size $(stty size)\n")
    await shell.hear("size 31 117\r\n")
    await settle(sandbox.pty.resize(shell.handle.pid, size(20, 99)))
    await send("echo size $(stty size) $TERM\n")
    await shell.hear("size 20 99 xterm-256color\r\n")
    number, _ = tree()
    await send(f"setsid sleep {number} & sleep {number}\n")
    await until("both live", lambda: living(number) == 2)
    assert await settle(sandbox.pty.kill(shell.handle.pid)) is True
    assert living(number) == 0, living(number)
    assert await settle(sandbox.pty.kill(shell.handle.pid)) is False


@check("files: write, read, list, look, rename, remove")
async def files(sandbox):
    f = sandbox.files
    assert (await settle(f.write("d/text", "grüße\n"))).path == "/home/user/d/text"
    await settle(f.write("/home/user/d/bytes", bytes(range(256)) * 999))
    assert await settle(f.read("d/text")) == "grüße\n"
    assert bytes(await settle(f.read("d/bytes", format="bytes"))) == bytes(range(256)) * 999
    many = [{"path": f"many/{name}", "data": name} for name in "abc"]
    assert [one.name for one in await settle(f.write_files(many))] == ["a", "b", "c"]
    assert [one.name for one in await settle(f.list("many"))] == ["a", "b", "c"]
    assert {one.name for one in await settle(f.list("/home/user", depth=2))} >= {"d", "many", "text", "a"}
    assert (await settle(f.make_dir("made/deep"))) is True and (await settle(f.make_dir("made/deep"))) is False
    info = await settle(f.get_info("d/text"))
    assert (info.name, info.type, info.size, info.owner) == ("text", e2b.FileType.FILE, 8, "user"), info
    assert (await settle(f.rename("d/text", "made/text"))).path == "/home/user/made/text"
    assert not await settle(f.exists("d/text")) and await settle(f.exists("made/text"))
    await settle(f.remove("made"))
    assert not await settle(f.exists("made/text"))
    await refusal(lambda: f.read("made/text"), e2b.NotFoundException)
    await refusal(lambda: f.list("made"), e2b.NotFoundException)


@check("files: streams, gzip, metadata")
async def streams_of_files(sandbox):
    f = sandbox.files
    if not has(f.write, "metadata"):
        raise Skip("this version has no metadata of files")
    text = "line\n" * 50_000
    await settle(f.write("packed", text, gzip=True, metadata={"of": "file"}))
    assert await settle(f.read("packed", gzip=True)) == text
    assert (await settle(f.get_info("packed"))).metadata == {"of": "file"}
    stream, size = await settle(f.read("packed", format="stream")), 0
    if IS_ASYNC:
        async for chunk in stream:
            size += len(chunk)
    else:
        size = sum(len(chunk) for chunk in stream)
    assert size == len(text), size


@check("a watched directory tells of changes, also below")
async def watch(sandbox):
    await settle(sandbox.files.make_dir("seen/below"))
    heard = []
    options = {"on_event": heard.append} if IS_ASYNC else {}
    for recursive, name in ((False, "near"), (True, "below/far")):
        watcher = await settle(sandbox.files.watch_dir("seen", recursive=recursive, **options))
        await settle(sandbox.files.write(f"seen/{name}", "x"))

        def is_heard():
            heard.extend([] if IS_ASYNC else watcher.get_new_events())
            return any(event.name == name for event in heard)

        await until(f"an event of {name}", is_heard)
        await settle(watcher.stop())


@check("signed addresses of files")
async def signed(sandbox):
    url = sandbox.download_url("signed")
    if not url.startswith(SERVER):
        raise Skip("the addresses of this version lead elsewhere")
    await settle(sandbox.files.write("signed", "content"))
    assert fetch(url) == (200, b"content"), fetch(url)
    assert fetch(sandbox.download_url("signed", use_signature_expiration=60)) == (200, b"content")
    # Without its signature, the address has no right.
    bare = fetch(url.replace("signature=v1_", "signature=v1_A"))
    assert bare[0] in (400, 401, 403, 404), bare
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nuploaded\r\n--x--\r\n'
    status, said = fetch(sandbox.upload_url("up"), body, {"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 200, said
    assert await settle(sandbox.files.read("up")) == "uploaded"


@check("a port of a sandbox")
async def port(sandbox):
    await settle(sandbox.files.write("www/index.html", "served"))
    server = await Command.run(sandbox, "cd www && exec python3 -u -m http.server 8000")
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
    await until("it listens", lambda: fetch(SERVER + "/", headers=headers) == (200, b"served"))
    assert fetch(SERVER + "/none", headers=headers)[0] == 404
    status, said = fetch(SERVER + "/", headers={**headers, "E2b-Sandbox-Port": "8001"})
    assert status == 502 and b"port is not open" in said, said
    assert await settle(server.handle.kill()) is True


@check("the time limit of a sandbox is set anew")
async def set_timeout(sandbox):
    before = (await settle(sandbox.get_info())).end_at
    await settle(sandbox.set_timeout(1200))
    after = (await settle(sandbox.get_info())).end_at
    assert 500 < (after - before).total_seconds() < 700, (before, after)


@check("pause, and connect")
async def pause(sandbox):
    number, _ = tree()
    command = await Command.run(sandbox, f"sleep {number}", timeout=0)
    await until("it lives", lambda: living(number) == 1)
    stop = sandbox.pause if hasattr(sandbox, "pause") else sandbox.beta_pause
    try:
        await settle(stop())
    except e2b.SandboxException as error:
        if "no cgroup of its own" not in str(error) or os.geteuid() == 0:
            raise
        assert await settle(command.handle.kill()) is True
        raise Skip("this user has no cgroups") from error
    assert (await listed(metadata=RUN, state=[e2b.SandboxState.PAUSED]))[0] == [sandbox.sandbox_id]
    assert not await settle(sandbox.is_running()) and living(number) == 1
    await settle(Sandbox.connect(sandbox.sandbox_id))
    assert (await settle(sandbox.commands.run("echo on"))).stdout == "on\n"
    assert command.handle.pid in [one.pid for one in await settle(sandbox.commands.list())] and living(number) == 1
    assert await settle(command.handle.kill()) is True


@check("a template that is not there is refused with the names of the others")
async def template(_):
    error = await refusal(lambda: Sandbox.create("no-such-template"))
    assert "base" in str(error), error


@check("a wrong key is refused, the right one is not")
async def wrong_key(_):
    kept = dict(os.environ)
    os.environ.update(E2B_API_URL=os.environ["PENFOLD_TEST_TOKENS"], E2B_SANDBOX_URL=os.environ["PENFOLD_TEST_TOKENS"])
    try:
        await refusal(lambda: Sandbox.create(api_key="e2b_" + "0" * 40), e2b.AuthenticationException)
        sandbox = await settle(Sandbox.create())
        assert (await settle(sandbox.commands.run("echo in"))).stdout == "in\n"
        assert await settle(sandbox.kill()) is True
    finally:
        os.environ.update(kept)


@check("the end of a sandbox: all is gone, and a running command learns of it")
async def end(sandbox):
    number, script = tree()
    command = await Command.run(sandbox, script)
    await until("the tree lives", lambda: living(number) == TREE)
    assert await settle(sandbox.kill()) is True
    assert living(number) == 0, living(number)
    error = await refusal(command.wait)
    if hasattr(e2b, "SandboxNotRunningException"):
        assert isinstance(error, e2b.SandboxNotRunningException) and "sandbox was killed" in str(error), repr(error)
    assert await settle(sandbox.kill()) is False
    assert await settle(Sandbox.kill(sandbox.sandbox_id)) is False
    await refusal(lambda: sandbox.get_info(), e2b.NotFoundException)
    await refusal(lambda: sandbox.commands.run("true"))
    assert (await listed(metadata=RUN))[0] == []


def interrupt(*_):
    raise TimeoutError(f"not done within {LIMIT} s")


async def main():
    logging.disable()
    signal.signal(signal.SIGALRM, interrupt)
    passed = failed = 0
    sandbox = await settle(Sandbox.create(timeout=600, metadata={**RUN, "kind": "shared"}, envs={"OF_SANDBOX": "value"}))
    for name, function in checks:
        signal.alarm(LIMIT)
        try:
            await function(sandbox)
            passed += 1
            print(f"ok: {name}", flush=True)
        except Skip as why:
            print(f"left out: {name}: {why}", flush=True)
        except Exception:
            failed += 1
            print(f"failed: {name}\n{traceback.format_exc()}", flush=True)
        finally:
            signal.alarm(0)
    print(f"{passed} passed, {failed} failed", flush=True)
    # pyqwest 0.10, the transport of 2.45 and 2.55, may abort when the interpreter ends.
    os._exit(0)


asyncio.run(main())
