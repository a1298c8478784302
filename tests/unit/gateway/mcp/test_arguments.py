"""Arguments as models and clients really send them: accepted where they are clear, else refused by name."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from sandpod_gateway.mcp.arguments import LanguageName
from sandpod_gateway.runs.request import OTHER_NAMES
from support.gateway.fake_gateway import Caller


@pytest.mark.parametrize(
    ("tool", "arguments", "meant"),
    [
        ("write_file", {"path": "a", "content": "x"}, {"path": "a", "size": 1}),
        ("write_file", {"file_path": "a", "text": "x"}, {"path": "a", "size": 1}),
        ("run_python_code", {"script": "print(1)"}, {"stdout": "1\n"}),
        ("run_python_code", {"code": "print(1)", "timeout_seconds": "30"}, {"stdout": "1\n"}),
        ("run_python_code", {"code": "print(1)", "sandbox": "", "context": ""}, {"stdout": "1\n"}),
        ("run_python_code", {"code": "print(1)", "sandbox": "default", "idempotency_key": " "}, {"stdout": "1\n"}),
        ("run_python_code", {"code": "print(1)", "args": "[]", "env": "{}"}, {"stdout": "1\n"}),
        ("run_python_code", {"code": "print(1)", "cold_start": False, "fresh": "false"}, {"stdout": "1\n"}),
        ("run_python_code", {"code": "print(1)", "args": None, "fresh": None, "env": None}, {"stdout": "1\n"}),
        ("list_files", {"directory": ".", "recursive": "true"}, {"path": "."}),
        ("create_sandbox", {"name": "x", "lifetime": '{"ttl": 60}', "template": ""}, {"name": "x"}),
        ("create_sandbox", {"name": "x", "lifetime": None, "network": None}, {"name": "x"}),
    ],
)
async def test_arguments_that_are_clear_are_accepted(
    alice: Caller, tool: str, arguments: dict[str, Any], meant: dict[str, Any]
) -> None:
    await alice.call("write_file", path="b", text="")
    answer = await alice.call(tool, **arguments)
    assert {name: answer.get(name) for name in meant} == meant, answer


@pytest.mark.parametrize("language", ["Python", "py", " PYTHON3 "])
async def test_language_has_other_names(alice: Caller, language: str) -> None:
    assert "run_id" in await alice.call("start_run", code="print(1)", language=language)


@pytest.mark.parametrize(
    ("language", "meant"),
    [("bash", "shell"), ("sh", "shell"), ("js", "javascript"), ("TypeScript", "javascript"), ("Node", "javascript")],
)
def test_other_names_mean_the_language(language: str, meant: str) -> None:
    assert OTHER_NAMES[TypeAdapter(LanguageName).validate_python(language)] == meant


async def test_sandbox_is_found_by_its_name_and_no_name_is_the_default_sandboxes(alice: Caller) -> None:
    made = await alice.call("create_sandbox", name="Data work")
    assert (await alice.python("print(1)", sandbox="Data work")).sandbox == made["sandbox"]
    refused = await alice.call("create_sandbox", name="Default")
    assert refused["error"] == "invalid_session_id"


@pytest.mark.parametrize(
    ("tool", "arguments", "message", "next_step"),
    [
        ("run_python_code", {"kode": "1"}, "code is wrong: it is missing", "takes: code, sandbox"),
        ("run_python_code", {"code": "1", "timout": 5}, "timout", "Did you mean timeout? The tool takes: code,"),
        (
            "run_python_code",
            {"code": "1", "timeout": "soon"},
            "timeout is wrong: input should be a valid number",
            "code",
        ),
        ("run_python_code", {"code": "1", "args": [{}]}, "args.0 is wrong: input should be a valid string", "args"),
        ("read_file", {}, "path is wrong: it is missing", "The tool takes: path, sandbox"),
        ("read_file", {"path": None}, "path is wrong: it is missing", "The tool takes: path, sandbox"),
        (
            "create_sandbox",
            {"lifetime": {"tll": 5}},
            "lifetime.tll is wrong: there is no such argument",
            "Did you mean ttl? lifetime takes: ttl, idle_timeout.",
        ),
        ("create_sandbox", {"lifetime": {"ttl": 0}}, "lifetime.ttl is wrong", "lifetime takes: ttl, idle_timeout."),
        ("create_sandbox", {"lifetime": 5}, "lifetime is wrong: it should be an object", "The tool takes: name,"),
    ],
)
async def test_refusal_names_the_argument_and_lists_those_that_there_are(
    alice: Caller, tool: str, arguments: dict[str, Any], message: str, next_step: str
) -> None:
    answer = await alice.call(tool, **arguments)
    assert answer["error"] == "invalid_argument"
    assert message in answer["message"]
    assert next_step in answer["next"]
