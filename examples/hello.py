"""Run a program and watch its output arrive while it runs."""

import asyncio
import os

from fastmcp import Client

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")
CODE = """
import time
for i in range(3):
    print("line", i)
    time.sleep(0.5)
"""


async def show(_progress: float, _total: float | None, message: str | None) -> None:
    """Print output as it arrives."""
    print("while it runs:", message, end="")


async def main() -> None:
    """Call one tool."""
    async with Client(URL) as client:
        answer = await client.call_tool("run_python_code", {"code": CODE}, progress_handler=show)
    result = answer.structured_content
    print("result:", result["outcome"], repr(result["stdout"]))


asyncio.run(main())
