"""What a model reads of this server: that names, numbers, defaults and annotations in it are so."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import Tool

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import LOCAL
from sandpod_gateway.files.service import MAX_READ
from sandpod_gateway.mcp.server import INSTRUCTIONS
from sandpod_gateway.mcp.tools.sandboxes import MAX_NAME
from sandpod_gateway.settings import Settings
from support.gateway.fake_gateway import ERAS, Caller, Place

SOURCES = Path(__file__).parents[4] / "gateway/sandpod_gateway"

# Each number in a description of a tool or an argument, from where it is decided; a cursor and a version of packages
# are no limits.
LIMITS = Settings().limits
TIMES = [int(LIMITS.run_timeout), int(LIMITS.max_run_timeout)]
RUNNING = ("run_python_code", "run_js_code", "run_shell_command")
NUMBERS = {
    "create_sandbox name": [MAX_NAME],
    "read_file limit": [LIMITS.output_chars, MAX_READ],
    **{f"{tool} timeout": TIMES for tool in (*RUNNING, "start_run")},
    **{f"{tool} max_output": [LIMITS.output_chars] for tool in (*RUNNING, "read_run")},
}
NO_LIMITS = {("read_run cursor", 0)}

# Arguments for each tool that only reads, over what `furnish` made.
READING: dict[str, dict[str, Any]] = {
    "fetch_workspace": {},
    "get_installation": {"installation": "inst-0"},
    "get_sandbox": {"sandbox": "{sandbox}"},
    "list_artifacts": {},
    "list_contexts": {},
    "list_files": {"recursive": True},
    "list_packages": {},
    "list_runs": {},
    "list_sandboxes": {},
    "read_artifact": {"artifact": "d/a.txt"},
    "read_file": {"path": "d/a.txt"},
    "read_run": {"run_id": "{run_id}"},
    "stat_file": {"path": "d/a.txt"},
}


@pytest.fixture
async def caller(place: Place) -> Any:
    async with place.connect(LOCAL.owner) as connected:
        yield connected


def described(schema: Any) -> Iterator[tuple[str, str]]:
    """Give each property of a schema, at whatever depth, with its description."""
    if isinstance(schema, dict):
        for name, field in schema.get("properties", {}).items():
            yield name, field.get("description", "")
        for value in schema.values():
            yield from described(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from described(value)


async def capabilities(caller: Caller) -> dict[str, Any]:
    (content,) = await caller.client.read_resource("sandpod://capabilities")
    told = json.loads(getattr(content, "text", ""))
    assert isinstance(told, dict)
    return told


async def names_of(caller: Caller, tools: list[Tool]) -> set[str]:
    """Return every name that a text may use: tools, arguments, fields of answers, capabilities."""
    told = await capabilities(caller)
    names = {tool.name for tool in tools} | {*told} | {*told["limits"]}
    return names.union(*({name for name, _ in described([tool.input_schema, tool.output_schema])} for tool in tools))


def named_in(text: str) -> set[str]:
    """Return the names that a text uses: with an underscore, or as code."""
    code = {word.split("(")[0] for word in re.findall(r"`([^`]+)`", text)}
    return code | set(re.findall(r"(?<![\w/.-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w(])", text))


@ERAS
async def test_everything_that_a_text_names_exists(caller: Caller) -> None:
    tools = await caller.client.list_tools()
    (prompt,) = await caller.client.list_prompts()
    known = await names_of(caller, tools) | {argument.name for argument in prompt.arguments or []}
    known |= {"display", *ErrorCode}  # what every Python program has, and every answer
    guide = (await caller.client.get_prompt(prompt.name, {})).messages[0].content
    (template,) = await caller.client.list_resource_templates()
    texts = {
        "instructions": INSTRUCTIONS,
        "prompt": getattr(guide, "text", ""),
        "prompt's own": prompt.description or "",
        "resource": template.description or "",
    }
    for tool in tools:
        texts[tool.name] = tool.description or ""
        for name, text in described([tool.input_schema, tool.output_schema]):
            texts[f"{tool.name} {name} {len(texts)}"] = text
    unknown = {place: names for place, text in texts.items() if (names := named_in(text) - known)}
    assert unknown == {}
    assert named_in(texts["instructions"]) >= {"run_python_code", "install_packages"}
    assert named_in(texts["prompt"]) >= {"run_python_code", "read_run", "exit_code"}


def steps_in(node: ast.AST) -> list[ast.expr]:
    """Return what a node of a source says to do about a refusal: as an argument, or in a variable that becomes one."""
    if isinstance(node, ast.keyword) and node.arg in {"next_step", "next"}:
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_refusal":
        return node.args[1:2]
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Tuple | ast.Name):
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        return [value for name, value in zip(names, values, strict=False) if ast.unparse(name) == "step"]
    return []


@pytest.mark.claim("instructions")
async def test_what_a_refusal_tells_to_call_exists(caller: Caller) -> None:
    known = await names_of(caller, await caller.client.list_tools())
    told: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        if path.parent.name == "backends":
            continue  # these also speak to administrators, of settings and conditions
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for step in steps_in(node):
                texts = [part.value for part in ast.walk(step) if isinstance(part, ast.Constant)]
                told[f"{path.name}:{step.lineno}"] = named_in(" ".join(map(str, texts)))
    assert {"create_link", "list_sandboxes", "read_file", "write_file"} <= set().union(*told.values())
    # What is no single word is a command line, for administrators.
    unknown = {place: words for place, names in told.items() if (words := set(filter(str.isidentifier, names - known)))}
    assert unknown == {}


async def test_refusal_has_a_code_a_sentence_and_what_to_do_next(caller: Caller) -> None:
    for name, arguments, code in (
        ("get_sandbox", {"sandbox": "sbx-none"}, ErrorCode.SESSION_NOT_FOUND),
        ("write_file", {"path": "../x", "text": ""}, ErrorCode.INVALID_PATH),
        ("start_run", {"code": "1", "language": "cobol"}, ErrorCode.UNSUPPORTED_LANGUAGE),
        ("create_sandbox", {"template": "no such"}, ErrorCode.INVALID_ARGUMENT),
    ):
        refused = await caller.call(name, **arguments)
        assert (refused["error"], refused["message"][-1], refused["next"][-1]) == (code, ".", "."), name


@pytest.mark.claim("read_file(limit)")
async def test_every_number_in_a_description_is_the_one_that_holds(caller: Caller) -> None:
    found: dict[str, list[int]] = {}
    for tool in await caller.client.list_tools():
        texts = {tool.name: tool.description or ""}
        texts |= {f"{tool.name} {name}": text for name, text in described(tool.input_schema)}
        for place, text in texts.items():
            numbers = [int(number) for number in re.findall(r"(?<![\w.<=-])\d+(?![\w-])", text)]
            if kept := [number for number in numbers if (place, number) not in NO_LIMITS]:
                found[place] = kept
    assert found == NUMBERS


@pytest.mark.claim("run_python_code(timeout)", "work_with_sandpod.text", "sandpod://capabilities")
async def test_capabilities_tell_the_limits_and_defaults_that_are_set(caller: Caller) -> None:
    limits = Settings().limits
    told = (await capabilities(caller))["limits"]
    assert told["run_timeout_default"] == limits.run_timeout
    assert told["run_timeout_max"] == limits.max_run_timeout
    assert (told["code_max_bytes"], told["stdin_max_bytes"]) == (limits.code_bytes, limits.stdin_bytes)
    assert (told["upload_max_bytes"], told["read_max_bytes"]) == (limits.upload_bytes, MAX_READ)
    for name in ("list_files", "read_file"):
        (tool,) = (tool for tool in await caller.client.list_tools() if tool.name == name)
        limit = tool.input_schema["properties"]["limit"]
        most = told["list_max_entries" if name == "list_files" else "read_max_bytes"]
        assert limit.get("default", told["output_default_chars"]) <= most
        assert limit.get("maximum", most) == most


@ERAS
async def test_every_tool_has_a_title_a_description_and_both_schemas(caller: Caller) -> None:
    for tool in await caller.client.list_tools():
        assert tool.description
        assert tool.title
        assert tool.annotations is not None
        assert not (tool.annotations.read_only_hint and tool.annotations.destructive_hint)
        assert tool.output_schema is not None
        assert "required" not in tool.output_schema, "a coded error may take the result's place"


@pytest.mark.claim("run_python_code(sandbox)")
async def test_a_tool_that_says_it_only_reads_changes_nothing(caller: Caller, place: Place) -> None:
    reading = {t.name for t in await caller.client.list_tools() if t.annotations and t.annotations.read_only_hint}
    assert reading == READING.keys()
    for tool, arguments in READING.items():
        await caller.call(tool, **arguments)
    assert await place.backend.list(LOCAL.owner) == [], "looking makes no sandbox"
    sandbox = (await caller.call("write_file", path="d/a.txt", text="kept"))["sandbox"]
    run = (await caller.python("print(1)")).run_id
    before = await everything(caller)
    for tool, arguments in READING.items():
        filled = {k: v.format(sandbox=sandbox, run_id=run) if isinstance(v, str) else v for k, v in arguments.items()}
        answer = await caller.call(tool, **filled)
        # Over this test's client no link leads anywhere; this backend keeps no runs, and its Python is too little
        # of one to tell packages.
        assert answer.get("error") in {None, "invalid_argument", "not_found", "execution_failed"}, answer
        assert await everything(caller) == before


async def everything(caller: Caller) -> list[Any]:
    """Return what a caller has: sandboxes without their times, files, runs, contexts."""
    sandboxes = (await caller.call("list_sandboxes"))["sandboxes"]
    seen: list[Any] = []
    for sandbox in sandboxes:
        handle = sandbox["sandbox"]
        seen.append((handle, sandbox["status"], sandbox["running"]))
        seen.append((await caller.call("list_files", sandbox=handle, recursive=True))["entries"])
        seen.append(await caller.call("list_runs", sandbox=handle))
        seen.append(await caller.call("list_contexts", sandbox=handle))
    return seen


@pytest.mark.claim("list_sandboxes")
async def test_sandboxes_are_listed_oldest_first(caller: Caller) -> None:
    made = [(await caller.call("create_sandbox", name=name))["sandbox"] for name in ("b", "c", "a")]
    assert [each["sandbox"] for each in (await caller.call("list_sandboxes"))["sandboxes"]] == made
