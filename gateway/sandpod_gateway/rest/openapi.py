"""The description of the API (OpenAPI 3.1), from the tools' own arguments and results."""

import re
from collections.abc import Sequence
from typing import Any, Final

from fastmcp.tools.base import Tool
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sandpod_gateway.api.run_results import RunOutput, RunResult
from sandpod_gateway.mcp.toolbox import SetTool
from sandpod_gateway.rest.answers import PROBLEM, ProblemDetails
from sandpod_gateway.rest.operations import EVENTS, FILE, OPERATIONS, PREFIX, RUNS, STARTED, Operation
from sandpod_gateway.rest.pages import LIMIT, MAX_LIMIT
from sandpod_gateway.rest.terminal import TERMINAL, TerminalQuery
from sandpod_gateway.terminals.service import TOOL

Schema = dict[str, Any]

_REF: Final = "#/components/schemas/{model}"
_PART: Final = re.compile(r"{(\w+)}")
_PAGED: Final[dict[str, Schema]] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_LIMIT,
        "default": LIMIT,
        "description": "Most entries to return.",
    },
    "cursor": {"type": "string", "description": "`next` of the page before."},
}
_FORMAT: Final[dict[str, Schema]] = {
    "format": {"type": "string", "enum": ["json", "csv"], "description": "Default: as the header Accept says, or json."}
}
_NEXT: Final = {"type": ["string", "null"], "description": "`cursor` of the next page; null on the last one."}
_PICTURES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"mime_type": {"type": "string"}, "data_base64": {"type": "string"}},
        "required": ["mime_type", "data_base64"],
    },
    "description": "Figures, where there are some.",
}
_HEADERS: Final[dict[str, Schema]] = {
    "ETag": {"schema": {"type": "string"}, "description": "For If-None-Match, which is answered 304 without change."},
    "Link": {"schema": {"type": "string"}, "description": "The next page, as rel=next."},
}
_KEYS: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(listed: Sequence[Tool], version: str, *, keyed: bool) -> Schema:
    """Return the description of what a caller with these tools may use; `keyed` where a key or token is needed."""
    tools = {tool.name: tool for tool in listed if isinstance(tool, SetTool)}
    models: set[type[BaseModel]] = {tool.result for tool in tools.values()} | {ProblemDetails, RunResult}
    wanted: Any = [(model, "serialization") for model in models]
    _, components = models_json_schema(wanted, ref_template=_REF)
    for model in {RunResult, RunOutput} & models:
        components["$defs"][model.__name__]["properties"]["pictures"] = _PICTURES
    paths: dict[str, dict[str, Schema]] = {}
    for operation in (*OPERATIONS, STARTED):
        if (tool := tools.get(operation.tool)) is not None:
            path = paths.setdefault(operation.path, {})
            path[operation.method.lower()] = _operation(operation, tool)
    if RUNS in paths:
        _add_run(paths[RUNS]["post"])
    if "/runs/{run_id}" in paths:
        paths[EVENTS] = {"get": _events(paths["/runs/{run_id}"]["get"])}
    if TOOL in tools:
        paths[TERMINAL] = {"get": _terminal()}
    if "create_link" in tools:  # the toolset of files as they are
        paths.setdefault(FILE, {}).update(_file())
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sandpod", "version": version},
        "servers": [{"url": PREFIX}],
        "security": [{name: []} for name in _KEYS] if keyed else [],
        "paths": paths,
        "components": {"schemas": components["$defs"], "securitySchemes": _KEYS},
    }


def _operation(operation: Operation, tool: SetTool) -> Schema:
    inside = _PART.findall(operation.path)
    properties, required = tool.parameters["properties"], tool.parameters.get("required", [])
    parts = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, **_words(properties.get(name, {}))}
        for name in inside
    ]
    listing = operation.listing
    rest = {name: schema for name, schema in properties.items() if name not in inside}
    if listing is not None:
        rest |= _PAGED | (_FORMAT if listing.csv else {})
    described: Schema = {
        "operationId": operation.tool,
        **({"tags": ["administrators"]} if tool.admin else {}),
        "summary": tool.title,
        "description": tool.description,
        "parameters": parts,
        "responses": {
            str(int(operation.status)): _answer(operation, tool.result),
            "default": _response("Refused", PROBLEM, _ref(ProblemDetails)),
        },
    }
    if operation.tool == "create_sandbox":
        parts.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}})
    if operation.has_body:
        needed = [name for name in required if name not in inside]
        body = {"type": "object", "properties": rest, "additionalProperties": False, "required": needed}
        described["requestBody"] = {"required": bool(needed), "content": {"application/json": {"schema": body}}}
    else:
        parts.extend(
            {"name": name, "in": "query", "required": name in required, "schema": schema, **_words(schema)}
            for name, schema in rest.items()
        )
    return described


def _answer(operation: Operation, model: type[BaseModel]) -> Schema:
    """Describe an answer; a page of a list has what the tool's result has not."""
    if (listing := operation.listing) is None:
        return _response(operation.status.phrase, "application/json", _ref(model))
    whole = model.model_json_schema(mode="serialization", ref_template=_REF)
    whole.pop("$defs", None)
    # On the page itself: a schema that is closed can't be added to.
    whole["properties"] = {**whole["properties"], "next": _NEXT}
    described = _response(operation.status.phrase, "application/json", whole)
    if listing.csv:
        described["content"]["text/csv"] = {"schema": {"type": "string"}}
    return {**described, "headers": _HEADERS}


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": _REF.format(model=model.__name__)}


def _words(schema: Schema) -> Schema:
    return {"description": schema["description"]} if "description" in schema else {}


def _response(description: str, media_type: str, schema: Schema) -> Schema:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _add_run(described: Schema) -> None:
    """Say that a run is waited for unless `Prefer: respond-async` asks for the opposite."""
    described["operationId"], described["summary"] = "run", "Run a program"
    described["description"] = (
        "Runs a program and answers with its result. With the header `Prefer: respond-async` it is started, and goes "
        "on when the connection ends. Python, JavaScript and shell take the arguments of their tools."
    )
    described["parameters"] += [
        {"name": "Prefer", "in": "header", "schema": {"type": "string"}, "example": "respond-async"},
        {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}},
    ]
    described["responses"]["200"] = _response("OK", "application/json", _ref(RunResult))


def _file() -> dict[str, Schema]:
    """Describe how a file is read and written as it is."""
    parts = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _PART.findall(FILE)
    ]
    content: Schema = {"application/octet-stream": {"schema": {}}}
    refused = {"default": _response("Refused", PROBLEM, _ref(ProblemDetails))}
    of_file = {"type": "string"}
    written = {"type": "object", "properties": {"sandbox": of_file, "path": of_file, "size": {"type": "integer"}}}
    read: Schema = {
        "operationId": "download_file",
        "summary": "Read a file as it is",
        "parameters": [
            *parts,
            {"name": "Range", "in": "header", "schema": {"type": "string"}, "example": "bytes=0-99"},
        ],
        "responses": {
            "200": {"description": "OK", "content": {"*/*": {"schema": {}}}},
            "206": {"description": "The part that was asked for", "content": {"*/*": {"schema": {}}}},
            "416": {"description": "The file has no such part"},
            **refused,
        },
    }
    write: Schema = {
        "operationId": "upload_file_as_is",
        "summary": "Write a file as it is",
        "description": "The file appears whole or not at all.",
        "parameters": parts,
        "requestBody": {"required": True, "content": content},
        "responses": {"201": _response("Created", "application/json", written), **refused},
    }
    return {"get": read, "put": write}


def _events(read: Schema) -> Schema:
    """Describe the stream of a run's output, by how the run is read."""
    return {
        **read,
        "operationId": "stream_run",
        "summary": "Stream a run",
        "description": "The run's output as server-sent events: `output` as it comes, then one `result`. The id of an "
        "event is the cursor to go on from, which EventSource sends as Last-Event-ID. As a WebSocket it "
        "sends the same as text messages.",
        "parameters": [each for each in read["parameters"] if each["name"] in {"run_id", "cursor"}],
        "responses": {
            "200": _response("Events", "text/event-stream", {}),
            "default": read["responses"]["default"],
        },
    }


def _terminal() -> Schema:
    """Describe how a terminal is opened, which goes on as a WebSocket."""
    known = TerminalQuery.model_json_schema()["properties"]
    query = [
        {"name": name, "in": "query", "description": field.pop("description"), "schema": _given(field)}
        for name, field in known.items()
        if name != "tools"
    ]
    return {
        "operationId": "open_terminal",
        "summary": "Open a terminal",
        "description": "A WebSocket. Binary messages are bytes: what is typed, and what is shown. Text messages are "
        'JSON: you send {"ack": N} for N bytes of output that have come, and {"resize": [cols, rows]}; you get '
        '{"terminal": name, "received": N, "offset": N} first, {"taken": N} for input, and {"exit": ...} or '
        '{"error": ...} as the last one.',
        "parameters": [{"name": "sandbox", "in": "path", "required": True, "schema": {"type": "string"}}, *query],
        "responses": {
            "101": {"description": "The terminal, as a WebSocket"},
            "426": _response("The request is for no WebSocket", PROBLEM, _ref(ProblemDetails)),
            "default": _response("Refused", PROBLEM, _ref(ProblemDetails)),
        },
    }


def _given(field: Schema) -> Schema:
    """Return the schema of what a parameter has where it is sent."""
    one = next((each for each in field.get("anyOf", ()) if each != {"type": "null"}), field)
    return {name: value for name, value in one.items() if name != "title" and value is not None}
