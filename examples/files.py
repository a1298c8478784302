"""Move a file into a sandbox and its result out, without passing either through a model."""

import asyncio
import os
import urllib.request

from fastmcp import Client

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")
CODE = "rows = open('data.csv').read().split(); open('count.txt', 'w').write(str(len(rows)))"


def http(method: str, url: str, body: bytes | None = None) -> bytes:
    """Send one request; a link needs no key."""
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method)) as response:
        return response.read()


async def main() -> None:
    """Upload, run, download."""
    async with Client(URL) as client:
        put = await client.call_tool("create_link", {"path": "data.csv", "method": "put"})
        await asyncio.to_thread(http, "PUT", put.structured_content["url"], b"a\nb\nc\n")
        await client.call_tool("run_python_code", {"code": CODE})
        get = await client.call_tool("create_link", {"path": "count.txt"})
        print("rows:", (await asyncio.to_thread(http, "GET", get.structured_content["url"])).decode())


asyncio.run(main())
