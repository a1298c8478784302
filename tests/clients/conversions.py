"""Converts tools as other libraries do for their models; prints what becomes of the arguments, by library and tool.

    python conversions.py TOOLS.json

Runs in the environment of these libraries. TOOLS.json is what `tools/list` answers.
"""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.mcp import MCPServerStreamableHttp
from agents.mcp.util import MCPUtil
from google.genai import _mcp_utils
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
from mcp.types import Tool
from pydantic_ai.profiles.google import GoogleJsonSchemaTransformer
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer

Schema = dict[str, Any]


def google_genai(tool: Schema) -> Schema:
    declarations = _mcp_utils.mcp_to_gemini_tool(Tool.model_validate(tool)).function_declarations
    found: Schema = declarations[0].model_dump(mode="json", exclude_none=True)
    return found.get("parameters") or found.get("parameters_json_schema") or {}


def openai_agents(tool: Schema) -> Schema:
    server = MCPServerStreamableHttp({"url": "http://127.0.0.1/mcp"})
    converted = MCPUtil.to_function_tool(Tool.model_validate(tool), server, convert_schemas_to_strict=True)
    schema: Schema = converted.params_json_schema
    return schema


def langchain(tool: Schema) -> Schema:
    connection = {"transport": "streamable_http", "url": "http://127.0.0.1/mcp"}
    made = convert_mcp_tool_to_langchain_tool(None, Tool.model_validate(tool), connection=connection)
    convert_to_openai_tool(made, strict=True)
    schema: Schema = convert_to_openai_tool(made)["function"]["parameters"]
    return schema


def pydantic_ai_openai(tool: Schema) -> Schema:
    schema: Schema = OpenAIJsonSchemaTransformer(copy.deepcopy(tool["inputSchema"]), strict=True).walk()
    return schema


def pydantic_ai_google(tool: Schema) -> Schema:
    schema: Schema = GoogleJsonSchemaTransformer(copy.deepcopy(tool["inputSchema"])).walk()
    return schema


LIBRARIES: tuple[Callable[[Schema], Schema], ...] = (
    google_genai,
    openai_agents,
    langchain,
    pydantic_ai_openai,
    pydantic_ai_google,
)


def described(convert: Callable[[Schema], Schema], tool: Schema) -> dict[str, str] | str:
    """Return the arguments with their descriptions, or the complaint of a library that can't convert the tool."""
    try:
        properties = convert(tool).get("properties", {})
    except Exception as error:  # noqa: BLE001 - any complaint is a finding
        return f"{type(error).__name__}: {error}"
    return {name: field.get("description", "") for name, field in properties.items()}


def main() -> None:
    tools: list[Schema] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps({each.__name__: {tool["name"]: described(each, tool) for tool in tools} for each in LIBRARIES}))


if __name__ == "__main__":
    main()
