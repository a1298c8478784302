"""Runs example programs, and converts tools as the library of each does for its model.

    python conversions.py FOLDER PROGRAM ...

Runs in the environment of these libraries. FOLDER holds `tools.json`, what `tools/list` answers. There each program
leaves NAME.out and NAME.err, and NAME.json with the converted arguments. Prints the exit codes as JSON, by NAME.
"""

import copy
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

Schema = dict[str, Any]
Converter = Callable[[Schema], Schema]

SHARED: Final = ("mcp.client.streamable_http", "openai.resources.chat", "openai.resources.responses")
"""What most of the libraries import: half of their time, and spent once."""


def google_genai() -> dict[str, Converter]:
    utils = importlib.import_module("google.genai._mcp_utils")
    mcp = importlib.import_module("mcp.types")

    def convert(tool: Schema) -> Schema:
        declarations = utils.mcp_to_gemini_tool(mcp.Tool.model_validate(tool)).function_declarations
        found: Schema = declarations[0].model_dump(mode="json", exclude_none=True)
        return found.get("parameters") or found.get("parameters_json_schema") or {}

    return {"google_genai": convert}


def openai_agents() -> dict[str, Converter]:
    agents = importlib.import_module("agents.mcp")
    utils = importlib.import_module("agents.mcp.util")
    mcp = importlib.import_module("mcp.types")

    def convert(tool: Schema) -> Schema:
        server = agents.MCPServerStreamableHttp({"url": "http://127.0.0.1/mcp"})
        converted = utils.MCPUtil.to_function_tool(
            mcp.Tool.model_validate(tool), server, convert_schemas_to_strict=True
        )
        schema: Schema = converted.params_json_schema
        return schema

    return {"openai_agents": convert}


def langchain() -> dict[str, Converter]:
    adapters = importlib.import_module("langchain_mcp_adapters.tools")
    core = importlib.import_module("langchain_core.utils.function_calling")
    mcp = importlib.import_module("mcp.types")

    def convert(tool: Schema) -> Schema:
        connection = {"transport": "streamable_http", "url": "http://127.0.0.1/mcp"}
        made = adapters.convert_mcp_tool_to_langchain_tool(None, mcp.Tool.model_validate(tool), connection=connection)
        core.convert_to_openai_tool(made, strict=True)
        schema: Schema = core.convert_to_openai_tool(made)["function"]["parameters"]
        return schema

    return {"langchain": convert}


def pydantic_ai() -> dict[str, Converter]:
    google = importlib.import_module("pydantic_ai.profiles.google").GoogleJsonSchemaTransformer
    openai = importlib.import_module("pydantic_ai.profiles.openai").OpenAIJsonSchemaTransformer
    return {
        "pydantic_ai_openai": lambda tool: openai(copy.deepcopy(tool["inputSchema"]), strict=True).walk(),
        "pydantic_ai_google": lambda tool: google(copy.deepcopy(tool["inputSchema"])).walk(),
    }


LIBRARIES: Final[dict[str, Callable[[], dict[str, Converter]]]] = {
    "google_genai_chat": google_genai,
    "langchain_agent": langchain,
    "openai_agent": openai_agents,
    "pydantic_ai_agent": pydantic_ai,
}
"""The library's converters, by the name of the program that uses it."""


def described(convert: Converter, tool: Schema) -> dict[str, str] | str:
    """Return the arguments with their descriptions, or the complaint of a library that can't convert the tool."""
    try:
        properties = convert(tool).get("properties", {})
    except Exception as error:  # noqa: BLE001 - any complaint is a finding
        return f"{type(error).__name__}: {error}"
    return {name: field.get("description", "") for name, field in properties.items()}


def run(program: Path, folder: Path) -> None:
    """Run the program in this process, with files for what it prints, then the converters of its library."""
    for descriptor, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{program.stem}.{ending}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    runpy.run_path(str(program), run_name="__main__")
    tools: list[Schema] = json.loads((folder / "tools.json").read_text(encoding="utf-8"))
    converted = {
        name: {tool["name"]: described(convert, tool) for tool in tools}
        for name, convert in LIBRARIES[program.stem]().items()
    }
    (folder / f"{program.stem}.json").write_text(json.dumps(converted), encoding="utf-8")


def main() -> None:
    for name in SHARED:
        importlib.import_module(name)
    folder, *programs = map(Path, sys.argv[1:])
    codes = {}
    for program in programs:
        if (child := os.fork()) == 0:
            # It ends as every program does, its library's threads and `atexit` functions included.
            return run(program, folder)
        codes[program.stem] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(codes))
    return None


if __name__ == "__main__":
    main()
