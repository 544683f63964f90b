"""client.py close|hold COMMAND ARGUMENTS…

Starts an MCP server with the published SDK, asks it something, and closes the connection or waits to be killed."""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client


async def main() -> None:
    ending, command, *args = sys.argv[1:]
    async with stdio_client(StdioServerParameters(command=command, args=args, env=dict(os.environ))) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            print("connected", flush=True)
            if ending == "hold":
                await asyncio.sleep(100)


asyncio.run(main())
