"""python client.py PENFOLD ROOT

Drives `penfold mcp` with the published Python SDK. Prints a line for each check that failed, and the numbers.
"""

import asyncio
import subprocess
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

program, root = sys.argv[1:]
passed, failed = 0, []

SERVER = """import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print("listening on", listener.getsockname()[1], flush=True)
time.sleep(1000)"""


def check(name, holds, seen=None):
    global passed
    if holds:
        passed += 1
    else:
        failed.append(f"{name}: {seen!r}")


def running():
    return subprocess.run([program, "--root", root, "ps", "-q"], capture_output=True, text=True).stdout


def session(*flags):
    return stdio_client(StdioServerParameters(command=program, args=["--root", root, "mcp", *flags]))


def field(value, camel, snake):
    """The fields of the SDK have had both spellings."""
    return getattr(value, snake) if hasattr(value, snake) else getattr(value, camel)


def data(result):
    return field(result, "structuredContent", "structured_content")


def is_error(result):
    return field(result, "isError", "is_error")


async def drive(client):
    tools = (await client.list_tools()).tools
    check("tools", [tool.name for tool in tools] == "run ps logs exec stop report ports".split(), tools)
    ran = await client.call_tool("run", {"command": [sys.executable, "-c", SERVER], "name": "web", "ready_port": 0})
    check("run", not is_error(ran) and data(ran)["ready"] is True, ran)
    port = data(ran)["ports"][0]["port"]
    log = await client.call_tool("logs", {"sandbox": "web", "until": f"listening on {port}"})
    check("logs", data(log)["found"] and f"listening on {port}" in log.content[0].text, log)
    ports = await client.call_tool("ports", {"sandbox": "web"})
    check("ports", data(ports)["ports"][0]["port"] == port, ports)
    executed = await client.call_tool("exec", {"sandbox": "web", "shell": "echo out; echo err >&2; exit 3"})
    check("exec", (data(executed)["stdout"], data(executed)["exit"]["code"]) == ("out\n", 3), executed)
    wrong = await client.call_tool("logs", {"sandbox": "none"})
    check("an unknown sandbox is a tool error", is_error(wrong) and "none" in wrong.content[0].text, wrong)
    waiting = asyncio.ensure_future(client.call_tool("logs", {"sandbox": "web", "until": "never", "timeout_s": 600}))
    listed = await client.call_tool("ps", {})
    check("ps beside a wait", data(listed)["sandboxes"][0]["started_here"] is True, listed)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    check("a cancelled wait", waiting.cancelled())
    stopped = await client.call_tool("stop", {"sandbox": "web"})
    check("stop", data(stopped)["gone"] is True, stopped)
    report = await client.call_tool("report", {"sandbox": "web"})
    check("report", data(report)["report"]["verified"] is True, report)
    await client.call_tool("run", {"shell": "trap '' TERM; setsid sleep 1000 & sleep 1000", "grace_s": 0.2})
    check("one runs", len(running().strip()) == 12, running())


async def main():
    async with session() as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        await drive(client)
    check("close leaves nothing", running() == "", running())
    async with session("--read-only") as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        check("read-only", len((await client.list_tools()).tools) == 4)
        check("read-only run", is_error(await client.call_tool("run", {"command": ["true"]})))


asyncio.run(main())
for line in failed:
    print("failed:", line)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed else 0)
