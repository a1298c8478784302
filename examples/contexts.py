"""Keep variables between calls, and get the value of the last expression."""

import asyncio
import os

from fastmcp import Client

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")


async def main() -> None:
    """Make two calls with one context."""
    async with Client(URL) as client:
        for code in ("prices = [3, 5, 8]", "sum(prices) / len(prices)"):
            answer = await client.call_tool("run_python_code", {"code": code, "context": "analysis"})
    print("average:", answer.structured_content["result"]["text/plain"])


asyncio.run(main())
