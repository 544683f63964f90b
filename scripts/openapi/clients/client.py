"""Starts a sandbox with the generated client, runs a command in it, reads its output, and ends it."""

import json
import sys

from penfold_client.api.execs import create_exec
from penfold_client.api.logs import get_logs
from penfold_client.api.sandboxes import create_sandbox, delete_sandbox, get_sandbox, kill_sandbox
from penfold_client.client import AuthenticatedClient
from penfold_client.models.create_exec import CreateExec
from penfold_client.models.kill_request import KillRequest
from penfold_client.models.sandbox_spec import SandboxSpec

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token)
spec = SandboxSpec(command=["sh", "-c", "echo begun; exec sleep 600"])
made = create_sandbox.sync(client=client, body=spec)
job = CreateExec(command=["sh", "-c", "echo out; exit 3"])
execed = create_exec.sync(made.id, client=client, body=job, wait=1)
logs = "".join(frame.text for frame in get_logs.sync(made.id, client=client).frames)
ended = kill_sandbox.sync(made.id, client=client, body=KillRequest())
delete_sandbox.sync(made.id, client=client)
gone = get_sandbox.sync(made.id, client=client)
print(json.dumps([execed.stdout.text, execed.exit_.to_dict(), logs, ended.result.value, gone.type_], separators=(",", ":")))
