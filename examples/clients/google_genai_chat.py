"""A Gemini model with Sandpod's tools, through google-genai: pip install google-genai mcp."""

import asyncio
import os

from google import genai
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")


async def main() -> None:
    """Ask one question that the model answers by running code."""
    async with streamablehttp_client(URL) as (reader, writer, _), ClientSession(reader, writer) as session:
        await session.initialize()
        answer = await genai.Client().aio.models.generate_content(
            model="gemini-2.5-flash",
            contents="What is 6 * 7? Run Python code to find out.",
            config={"tools": [session]},  # a dict: a GenerateContentConfig would be copied, which no session can be
        )
    print(answer.text)


asyncio.run(main())
