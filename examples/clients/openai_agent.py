"""An agent of the OpenAI Agents SDK with Sandpod's tools: pip install openai-agents."""

import asyncio
import os

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")


async def main() -> None:
    """Ask one question that the model answers by running code."""
    # Without client_session_timeout_seconds each call is given up after 5 seconds.
    async with MCPServerStreamableHttp(params={"url": URL}, client_session_timeout_seconds=120) as sandpod:
        agent = Agent(name="Analyst", model="gpt-5", mcp_servers=[sandpod])
        result = await Runner.run(agent, "What is 6 * 7? Run Python code to find out.")
    print(result.final_output)


asyncio.run(main())
