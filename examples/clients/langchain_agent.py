"""A LangChain agent with Sandpod's tools: pip install langchain langchain-openai langchain-mcp-adapters."""

import asyncio
import os

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

URL = os.environ.get("SANDPOD_URL", "http://127.0.0.1:8000/mcp")


async def main() -> None:
    """Ask one question that the model answers by running code."""
    client = MultiServerMCPClient({"sandpod": {"transport": "streamable_http", "url": URL}})
    async with client.session("sandpod") as session:
        tools = await load_mcp_tools(session)
        agent = create_agent("openai:gpt-5", tools)
        question = {"role": "user", "content": "What is 6 * 7? Run Python code to find out."}
        answer = await agent.ainvoke({"messages": [question]})
    print(answer["messages"][-1].text)


asyncio.run(main())
