"""Start a program that outlasts the call, and read its output as it appears."""

import asyncio
import os

from fastmcp import Client

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")
CODE = """
import time
for epoch in range(3):
    print("epoch", epoch, flush=True)
    time.sleep(0.2)
"""


async def main() -> None:
    """Start a run and follow it to its end."""
    async with Client(URL) as client:
        started = await client.call_tool("start_run", {"code": CODE, "timeout": 3600})
        run, cursor = started.structured_content["run_id"], 0
        while True:
            reading = await client.call_tool("read_run", {"run_id": run, "cursor": cursor, "wait": 30})
            part = reading.structured_content
            print(part["stdout"], end="")
            cursor = part["cursor"]
            if part["result"] is not None:
                break
    print("ended:", part["result"]["outcome"])


asyncio.run(main())
