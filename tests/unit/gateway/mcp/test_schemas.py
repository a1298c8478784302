"""Schemas as clients get them: in the forms that every model API takes, with types that hold for what is answered."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pydantic import BaseModel

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.mcp.toolbox import input_schema, output_schema
from sandpod_gateway.settings import Settings

INPUT_WORDS: Final = {
    *("type", "properties", "required", "description", "items", "additionalProperties"),
    *("enum", "default", "minimum", "maximum"),
}


class Inner(BaseModel):
    size: int | None = None


class Result(BaseModel):
    name: str
    code: int | None = None
    inner: Inner
    maybe: Inner | None = None
    many: list[Inner] = []


def parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a schema and all schemas in it."""
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from parts(inner)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from parts(schema[name])


@pytest.fixture
async def schemas() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    mcp = Gateway(Settings(), FakeBackend()).mcp
    return {tool.name: (tool.parameters, tool.output_schema or {}) for tool in await mcp.list_tools()}


async def test_arguments_use_no_word_that_a_model_api_refuses(
    schemas: dict[str, tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    assert len(schemas) == 28
    for tool, (given, _) in schemas.items():
        for part in parts(given):
            assert part.keys() <= INPUT_WORDS, (tool, part)
            assert isinstance(part["type"], str), (tool, part)
            assert not isinstance(part.get("additionalProperties"), bool), (tool, part)
            assert part.get("default", 0) is not None, (tool, part)


async def test_results_have_types_alone_and_nothing_is_required(
    schemas: dict[str, tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    for tool, (_, result) in schemas.items():
        assert result.keys() == {"type", "properties"}, tool
        assert all(field.keys() == {"type"} for field in result["properties"].values()), tool


def test_optional_argument_has_its_type_alone() -> None:
    schema = {
        "type": "object",
        "additionalProperties": False,
        "$defs": {
            "Inner": {"type": "object", "title": "Inner", "properties": {"a": {"type": "integer", "default": 1}}}
        },
        "properties": {
            "a": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None, "description": "$x"},
            "b": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}], "default": None},
            "c": {"type": "boolean", "default": False},
        },
        "required": ["c"],
    }
    assert input_schema(schema, {"x": "7"}) == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "7", "minimum": 1},
            "b": {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}},
            "c": {"type": "boolean"},
        },
        "required": ["c"],
    }


def test_result_that_may_be_null_says_so() -> None:
    assert output_schema(Result)["properties"] == {
        "name": {"type": "string"},
        "code": {"type": ["integer", "null"]},
        "inner": {"type": "object"},
        "maybe": {"type": ["object", "null"]},
        "many": {"type": "array"},
    }
