"""python described.py

Calls every operation of the published description of E2B's REST API on `penfold serve --api e2b`, with the client that is
generated from it and comes with the Python SDK. What is served has a status and a body as described: each required field, no field
that is unknown, and each value as its type is written. Everything else is refused with 501 and a sentence. The variables are those
of drive.py. Prints a line for each operation, and the numbers.
"""

import datetime
import importlib
import inspect
import json
import os
import pkgutil
import random
import sys
import traceback
import typing

from e2b.api.client import api, models
from e2b.api.client.client import AuthenticatedClient
from e2b.api.client.errors import UnexpectedStatus
from e2b.api.client.models import Error
from e2b.api.client.types import Unset

client = AuthenticatedClient(
    base_url=os.environ["E2B_API_URL"], token=os.environ["E2B_API_KEY"], prefix="", auth_header_name="X-API-Key",
    raise_on_unexpected_status=True, timeout=60,
)
RUN = {"run": f"described-{os.getpid()}-{random.randrange(10**9)}"}
# The operations that are served, in an order in which each has its success: the status, and the body. The sandbox of the others is
# the one of the last create.
NEW = {"templateID": "base", "timeout": 300, "metadata": RUN}
SERVED = [
    ("post_sandboxes", 201, NEW),
    ("delete_sandboxes_sandbox_id", 204, None),
    ("post_v2_sandboxes", 201, NEW),
    ("get_sandboxes", 200, None),
    ("get_v2_sandboxes", 200, None),
    ("get_sandboxes_sandbox_id", 200, None),
    ("get_sandboxes_metrics", 200, None),
    ("get_templates_aliases_alias", 200, None),
    ("get_sandboxes_sandbox_id_metrics", 200, None),
    ("get_sandboxes_sandbox_id_logs", 200, None),
    ("get_v_2_sandboxes_sandbox_id_logs", 200, None),
    ("post_sandboxes_sandbox_id_timeout", 204, {"timeout": 200}),
    ("post_sandboxes_sandbox_id_refreshes", 204, {"duration": 100}),
    ("post_sandboxes_sandbox_id_connect", 200, {"timeout": 200}),
    ("post_v_2_sandboxes_sandbox_id_connect", 200, {"timeout": 200}),
    ("post_sandboxes_sandbox_id_pause", 204, {}),
    ("get_sandboxes_sandbox_id", 200, None),
    ("post_sandboxes_sandbox_id_resume", 201, {"timeout": 200}),
    ("delete_sandboxes_sandbox_id", 204, None),
]
# Without a cgroup of its own, a sandbox is neither paused nor resumed.
NEEDS_CGROUP = {"post_sandboxes_sandbox_id_pause", "post_sandboxes_sandbox_id_resume"}
current = None


def operations():
    """Returns the modules of all operations, by name."""
    found = {}
    for group in pkgutil.iter_modules(api.__path__):
        package = importlib.import_module(f"{api.__name__}.{group.name}")
        for module in pkgutil.iter_modules(package.__path__):
            found[module.name] = importlib.import_module(f"{package.__name__}.{module.name}")
    return found


def arguments(module, body, sandbox):
    """Returns what an operation needs: all that has no default."""
    found = {"client": client}
    for name, parameter in inspect.signature(module.sync_detailed).parameters.items():
        if name == "client" or parameter.default is not inspect.Parameter.empty and name != "metadata":
            continue
        if name == "body":
            found[name] = Given(body) if body is not None else Given({})
        elif name == "sandbox_ids":
            found[name] = [sandbox]
        elif name == "alias":
            found[name] = "base"
        elif name == "metadata":
            found[name] = "&".join(f"{key}={value}" for key, value in RUN.items())
        else:
            found[name] = sandbox
    return found


class Given:
    """A body as it is."""

    def __init__(self, fields):
        self.fields = fields

    def to_dict(self):
        return self.fields


def unknown(value, path="answer"):
    """Returns the fields of a parsed answer that are not described."""
    if isinstance(value, (list, tuple)):
        return [name for index, part in enumerate(value) for name in unknown(part, f"{path}[{index}]")]
    if not hasattr(value, "__attrs_attrs__"):
        return []
    found = []
    for attribute in value.__attrs_attrs__:
        part = getattr(value, attribute.name)
        if attribute.name == "additional_properties":
            # Models that are free maps have no other fields.
            found += [f"{path}.{name}" for name in part if len(value.__attrs_attrs__) > 1]
        else:
            found += wrong_type(value, attribute.name, part, path) + unknown(part, f"{path}.{attribute.name}")
    return found


def wrong_type(model, name, part, path):
    """Returns the field if its value is not of the type that is described; the generated client checks few of them."""
    wanted = typing.get_type_hints(type(model), vars(models) | vars(sys.modules[type(model).__module__])).get(name)
    if isinstance(part, Unset) or wanted in (None, typing.Any):
        return []
    options = typing.get_args(wanted) if typing.get_origin(wanted) is typing.Union else (wanted,)
    plain = tuple(typing.get_origin(option) or option for option in options if option is not typing.Any)
    if typing.Any in options or isinstance(part, plain) or float in plain and isinstance(part, int):
        return []
    return [f"{path}.{name} is {part!r} and not {wanted}"]


def call(name, module, body, sandbox):
    """Calls an operation, and checks that the answer is as described. Returns its status, and its body."""
    answer = module.sync_detailed(**arguments(module, body, sandbox))
    fields = unknown(answer.parsed)
    assert not fields, f"not as described: {fields}"
    return int(answer.status_code), answer.parsed


def served(name, module, status, body):
    """Checks one operation that is served, and that it refuses a sandbox which is not there."""
    global current
    got, parsed = call(name, module, body, current)
    assert got == status, f"{got} instead of {status}: {parsed}"
    if name in ("post_sandboxes", "post_v2_sandboxes"):
        current = parsed.sandbox_id
    if name in ("get_sandboxes", "get_v2_sandboxes"):
        assert [one.sandbox_id for one in parsed] == [current], parsed
    if name == "get_sandboxes_sandbox_id":
        assert parsed.sandbox_id == current and isinstance(parsed.started_at, datetime.datetime), parsed
    if "sandbox_id" in inspect.signature(module.sync_detailed).parameters:
        got, parsed = call(name, module, body, "000000000000")
        assert got == 404 and isinstance(parsed, Error) and parsed.message, f"without a sandbox: {got} {parsed}"


def refused(name, module):
    """Checks that an operation is refused as a whole."""
    try:
        status, parsed = call(name, module, {}, current)
    except UnexpectedStatus as error:
        status, parsed = error.status_code, Error.from_dict(json.loads(error.content or b"{}"))
    assert status == 501 and parsed.code == 501 and parsed.message, f"{status} instead of 501: {parsed}"


def main():
    found = operations()
    steps = [(step[0], lambda step=step: served(step[0], found[step[0]], *step[1:])) for step in SERVED]
    others = sorted(set(found) - {name for name, _ in steps})
    # While the sandbox lives.
    steps[-1:-1] = [(name, lambda name=name: refused(name, found[name])) for name in others]
    passed = failed = 0
    for name, step in steps:
        try:
            step()
            passed += 1
            print(f"ok: {name}", flush=True)
        except Exception as error:
            if name in NEEDS_CGROUP and b"no cgroup" in getattr(error, "content", b""):
                print(f"left out: {name}: the sandbox has no cgroup of its own", flush=True)
                continue
            failed += 1
            print(f"failed: {name}\n{traceback.format_exc()}", flush=True)
    print(f"{passed} passed, {failed} failed", flush=True)


main()
