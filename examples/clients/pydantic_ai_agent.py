"""A Pydantic AI agent with Sandpod's tools: pip install "pydantic-ai-slim[mcp,openai]"."""

import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")


async def main() -> None:
    """Ask one question that the model answers by running code."""
    agent = Agent("openai:gpt-5", toolsets=[MCPToolset(URL)])
    async with agent:
        result = await agent.run("What is 6 * 7? Run Python code to find out.")
    print(result.output)


asyncio.run(main())
