"""An agent of the OpenAI Agents SDK with a sandbox of Sandpod's: pip install openai-agents e2b-code-interpreter.

E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where they are.
"""

import asyncio

from agents import RunConfig, Runner
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import SandboxAgent, SandboxRunConfig


async def main() -> None:
    """Ask one question that the model answers by running a command."""
    options = E2BSandboxClientOptions(sandbox_type="e2b_code_interpreter")
    config = RunConfig(sandbox=SandboxRunConfig(client=E2BSandboxClient(), options=options))
    agent = SandboxAgent(name="Analyst", model="gpt-5")
    result = await Runner.run(agent, "What is 6 * 7? Run Python code to find out.", run_config=config)
    print(result.final_output)


asyncio.run(main())
