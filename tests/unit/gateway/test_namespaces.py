"""Callers belong to a tenant, and a tenant's namespace is the server's to know: nobody can name one, by any face."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import pytest
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord, WorkspaceRequest
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.rest.openapi import describe
from sandpod_gateway.settings import Settings
from support.walk.callers import app_of
from support.walk.e2b import CONTROL, INSIDE

SYSTEMS: Final[Any] = ["philschmid", "johanli233", "chrishayuk", "gaiar"]


def names_in(schema: Any) -> Iterator[str]:
    """Yield what a caller may name: properties of schemas at any depth, and parameters of requests."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        if "in" in schema:
            yield schema["name"]
        for each in schema.values():
            yield from names_in(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from names_in(each)


def of_a_namespace(names: Iterator[str]) -> list[str]:
    found = list(names)
    assert found
    return [name for name in found if "namespace" in name.lower()]


@pytest.mark.promise("tenants-apart")
async def test_no_tool_operation_or_route_takes_a_namespace() -> None:
    gateway = Gateway(Settings(tools=["all"], compat=CompatSettings(systems=SYSTEMS)), FakeBackend())
    async with Client(gateway.mcp) as client:
        tools = await client.list_tools()
        uris = [each.uri_template for each in await client.list_resource_templates()]
    assert len(tools) > 50
    assert of_a_namespace(name for tool in tools for name in names_in(tool.input_schema)) == []
    assert of_a_namespace(iter(uris)) == []

    own = Gateway(Settings(), FakeBackend())
    listed = [tool for server in (own.mcp, own._rest_tools) for tool in await server.list_tools()]
    described = describe(listed, "0", keyed=True)["paths"]
    assert of_a_namespace(iter(described)) == of_a_namespace(names_in(described)) == []
    bodies = [
        each["requestBody"]["content"]["application/json"]["schema"]
        for of in described.values()
        for each in of.values()
        if "application/json" in each.get("requestBody", {}).get("content", {})
    ]
    assert bodies
    assert [body for body in bodies if body["additionalProperties"] is not False] == [], "what is not listed is refused"

    _, routes, methods = app_of(own)
    assert of_a_namespace(iter(methods)) == []
    for face in ("rest", "e2b", "console"):
        assert of_a_namespace(path for _, path in routes[face]) == []
    taken = [name for body in (*CONTROL.values(), *INSIDE.values()) for name in (*body.fields, *body.names)]
    assert of_a_namespace(iter(taken)) == []


@pytest.mark.promise("tenants-apart")
def test_nothing_that_a_face_can_ask_of_a_backend_names_a_namespace() -> None:
    methods = inspect.getmembers(Backend, inspect.isfunction)
    asked = [name for _, method in methods for name in inspect.signature(method).parameters]
    asked += [each.name for of in (ClaimRequest, WorkspaceRequest, SandboxRecord) for each in fields(of)]
    assert of_a_namespace(iter(asked)) == []
