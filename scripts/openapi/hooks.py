"""What schemathesis cannot know: ids of living sandboxes, and requests that must stay in the temporary directory.

Only values that fit the schema are replaced: a value that must be refused stays as it is.
"""

import hashlib
import json
import os
import threading
import urllib.error
import urllib.request

import schemathesis
from schemathesis.core import NOT_SET

ADDRESS, TOKEN, WORK = (os.environ[name] for name in ("PENFOLD_ADDRESS", "PENFOLD_TOKEN", "PENFOLD_WORK"))
LOCK = threading.Lock()
# Requests that end their sandbox, exec or session.
ENDING = {
    "deleteSandbox", "killSandbox", "stopSandbox", "deleteExec", "killExec", "stopExec", "signalExec", "deleteSession",
    "waitForSandbox", "getReport", "waitForExec", "extendSandbox",
}
# The commands of sandboxes and execs: short, and one with output that goes on.
COMMANDS = [["true"], ["sh", "-c", "echo out; echo err >&2; exit 3"], ["sh", "-c", "echo begun; exec sleep 20"]]


def ask(method, path, body):
    """Sends a request beside the test; returns the answer."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(ADDRESS + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")


def sandbox():
    """Starts a sandbox with an exec, a session with a command, and a file; returns its id."""
    started = ask("POST", "/v1/sandboxes", {"command": ["sh", "-c", "echo begun; exec sleep 600"], "scratch": True})
    base = f"/v1/sandboxes/{started['id']}"
    ask("POST", f"{base}/execs", {"command": ["sh", "-c", "echo begun; exec sleep 600"], "terminal": {"rows": 24, "columns": 80}})
    ask("POST", f"{base}/sessions", {"name": "main"})
    ask("POST", f"{base}/sessions/main/run", {"command": "echo done; echo file > file; mkdir -p dir/inner; ln -s / away"})
    return started["id"]


SANDBOX = None


def known():
    """Returns the id of the sandbox that the whole run uses."""
    global SANDBOX
    with LOCK:
        SANDBOX = SANDBOX or sandbox()
        return SANDBOX


def draw(case, sides):
    """Throws a die: the same for the same request."""
    text = json.dumps([case.operation.label, case.path_parameters, case.query, str(case.body)], default=str, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % sides


@schemathesis.hook
def before_call(context, case, kwargs):
    """Uses living sandboxes, and keeps all that a request does short and in the temporary directory."""
    name = case.operation.definition.raw.get("operationId")
    die = draw(case, 4)
    if isinstance(case.path_parameters, dict) and die > 0:
        use_living(case, name)
    if isinstance(case.query, dict):
        bound_query(case.query, name, die)
    if name == "collectGarbage":
        bound_collection(case)
    if isinstance(case.body, dict):
        bound_body(case.body, name, die)


def use_living(case, name):
    """Replaces words of the path by those of a living sandbox, but not an id that an earlier answer gave."""
    words = case.path_parameters
    word = words.get("id")
    is_given = isinstance(word, str) and len(word) == 12 and all(digit in "0123456789abcdef" for digit in word)
    if not isinstance(word, str) or is_given:
        return
    words["id"] = sandbox() if name in ENDING and draw(case, 8) == 1 else known()
    if isinstance(words.get("number"), int):
        words["number"] = 1 + words["number"] % 2
    if isinstance(words.get("name"), str):
        words["name"] = "main"


def bound_query(query, name, die):
    """A stream ends, and a wait is short."""
    if name == "getEvents" and str(query.get("follow", "true")) in ("True", "true"):
        query["follow"] = "false"
    elif str(query.get("follow")) in ("True", "true"):
        query["follow"] = "false"
    if name in ("waitForSandbox", "waitForExec") and isinstance(query.get("timeout_ms", 0), int):
        if 0 <= query.get("timeout_ms", 0) <= 60000:
            query["timeout_ms"] = die * 100
    if isinstance(query.get("path"), str) and die > 1:
        query["path"] = ["file", "dir", "away/etc/passwd", "new/file", "../up"][draw_text(query["path"], 5)]


def draw_text(text, sides):
    """Throws a die for a text."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:4], "big") % sides


def bound_collection(case):
    """The collection looks at the whole host: it changes nothing here."""
    if case.body is NOT_SET or case.body is None:
        case.body, case.media_type = {"dry_run": True}, "application/json"
    elif isinstance(case.body, dict) and isinstance(case.body.get("dry_run", False), bool):
        case.body["dry_run"] = True


def bound_body(body, name, die):
    """Commands are harmless and short, and directories are in the temporary directory."""
    command = body.get("command")
    if name in ("createSandbox", "createExec"):
        if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
            body["command"] = COMMANDS[die % len(COMMANDS)] if die else command
    if name == "runInSession" and isinstance(command, str):
        body["command"] = ["true", "echo out; echo err >&2", "cd dir; false", command][die] if "\0" not in command else command
    if isinstance(body.get("dir"), str):
        body["dir"] = [WORK, WORK, body["dir"], WORK][die] if not os.path.isdir(body["dir"]) else WORK
    patience = body.get("patience_ms")
    if isinstance(patience, int) and not isinstance(patience, bool) and 0 <= patience < 10_000:
        # Without patience, what is about to end is reported as left: a documented error of the server.
        body["patience_ms"] = 10_000
    if isinstance(body.get("shell"), str):
        body["shell"] = "bash" if die else body["shell"]
