"""python drive.py

Drives the published code interpreter in a sandbox with the published Python SDK. Prints a line for each check, and the numbers.
"""

import os
import sys
import time
import traceback
import urllib.error
import urllib.request

from e2b_code_interpreter import Sandbox

checks = []


def check(name):
    """Makes a function a check."""

    def register(function):
        checks.append((name, function))
        return function

    return register


def await_server(sandbox):
    """Waits until the server of the sandbox listens: a sandbox is answered once its first process runs."""
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999"}
    end = time.monotonic() + 60
    while True:
        try:
            request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/health", headers=headers)
            return urllib.request.urlopen(request, timeout=10).read()
        except urllib.error.HTTPError as error:
            if time.monotonic() > end:
                raise AssertionError(f"the server does not listen: {error.read()}") from error
            time.sleep(0.1)


@check("code has its result, and what it has set stays")
def result(sandbox):
    assert sandbox.run_code("x = 1").text is None
    assert sandbox.run_code("x + 1").text == "2"


@check("output comes as it is written")
def output(sandbox):
    heard = []
    done = sandbox.run_code("import sys; print('out'); print('err', file=sys.stderr)", on_stdout=lambda line: heard.append(line.line))
    assert ("".join(done.logs.stdout), "".join(done.logs.stderr)) == ("out\n", "err\n"), done
    assert "".join(heard) == "out\n", heard


@check("an error has its name, its words and its place")
def error(sandbox):
    seen = sandbox.run_code("1 / 0").error
    assert (seen.name, seen.value) == ("ZeroDivisionError", "division by zero") and "line 1" in seen.traceback, seen


@check("contexts do not share what they have set")
def contexts(sandbox):
    context = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("x", context=context).error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert context.id in [one.id for one in sandbox.list_code_contexts()]
    sandbox.run_code("y = 1", context=context)
    sandbox.restart_code_context(context)
    assert sandbox.run_code("y", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    assert context.id not in [one.id for one in sandbox.list_code_contexts()]


@check("variables of one run")
def variables(sandbox):
    assert sandbox.run_code("import os; os.environ['OF_RUN']", envs={"OF_RUN": "value"}).text == "value"


@check("code and commands see the same files")
def files(sandbox):
    sandbox.run_code("open('/home/user/made', 'w').write('by code')")
    assert sandbox.files.read("made") == "by code"
    assert sandbox.commands.run("cat made").stdout == "by code"


def main():
    passed = failed = 0
    sandbox = Sandbox.create()
    try:
        await_server(sandbox)
        for name, function in checks:
            try:
                function(sandbox)
                passed += 1
                print(f"ok: {name}", flush=True)
            except Exception:
                failed += 1
                print(f"failed: {name}\n{traceback.format_exc()}", flush=True)
    except AssertionError as why:
        failed += 1
        print(f"failed: {why}")
    finally:
        sandbox.kill()
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.stdout.flush()
    # pyqwest may abort when the interpreter ends.
    os._exit(0)


main()
