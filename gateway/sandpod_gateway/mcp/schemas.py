"""JSON schemas as clients get them: plain enough for every model API, and as short as they can be.

A model pays for each schema in every conversation, and some model APIs refuse `anyOf`, `$ref` and boolean forms of
`additionalProperties`. So optional arguments have their type alone (leaving one out means its default), models are
written where they are used, and results are names and types. What a call may contain is checked by the server.
"""

import functools
import string
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = ("type", "description", "enum", "default", "minimum", "maximum")


def input_schema(schema: Schema, facts: Mapping[str, str]) -> Schema:
    """Return the plain form of what pydantic says of a tool's arguments; `facts` stand for `$name` in descriptions."""
    defs = schema.get("$defs", {})
    properties = {name: _plain(field, defs, facts) for name, field in schema.get("properties", {}).items()}
    plain: Schema = {"type": "object", "properties": properties}
    if required := schema.get("required"):
        plain["required"] = required
    return plain


def _plain(field: Schema, defs: Schema, facts: Mapping[str, str]) -> Schema:
    """Return one argument's schema without null, references and what only a validator needs."""
    merged = dict(field)
    for option in field.get("anyOf", []):
        if option.get("type") != "null":
            merged = {**option, **{key: value for key, value in field.items() if key != "anyOf"}}
            break
    if "$ref" in merged:
        merged = {**defs[merged.pop("$ref").rsplit("/", 1)[1]], **merged}
    # What is false unless it is said needs no word.
    plain = {key: merged[key] for key in _KEPT if merged.get(key) is not None and merged[key] is not False}
    if "description" in plain:
        plain["description"] = string.Template(plain["description"]).substitute(facts)
    if "items" in merged:
        plain["items"] = _plain(merged["items"], defs, facts)
    if "properties" in merged:
        plain["properties"] = {name: _plain(each, defs, facts) for name, each in merged["properties"].items()}
    if isinstance(extra := merged.get("additionalProperties"), dict):
        plain["additionalProperties"] = _plain(extra, defs, facts)
    return plain


@functools.cache
def output_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a tool's result: the names of its fields and their types.

    Clients check results against it. A coded error takes a result's place, so nothing is required.
    """
    schema = model.model_json_schema(mode="serialization")
    defs = schema.get("$defs", {})
    return {"type": "object", "properties": {name: _types(field, defs) for name, field in schema["properties"].items()}}


def _types(field: Schema, defs: Schema) -> Schema:
    if "anyOf" in field:
        options = [_types(option, defs) for option in field["anyOf"]]
        return {"type": [kind for option in options for kind in _as_list(option.get("type", "object"))]}
    if "$ref" in field:
        return {"type": defs[field["$ref"].rsplit("/", 1)[1]].get("type", "object")}
    return {"type": field.get("type", "string")}


def _as_list(kind: Any) -> list[str]:
    return kind if isinstance(kind, list) else [kind]
