"""Makes what is the same for every gateway and each of its clients once for all tests.

FastMCP derives a tool's schema from its function, the client of the MCP SDK checks each schema of a result, and each
HTTP client reads the certificates that the system trusts. Of a test that has a gateway of its own, that was most.
"""

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore2
import pytest
from fastmcp.server.dependencies import transform_context_annotations
from fastmcp.tools.function_parsing import ParsedFunction
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

_parse: Final = ParsedFunction.from_function
_check: Final = Draft202012Validator.check_schema
_parsed: Final[dict[Any, tuple[ParsedFunction, bool]]] = {}


def _parse_once(function: Callable[..., Any]) -> ParsedFunction:
    """Return what FastMCP reads of a tool's function, from an earlier one of the same code but for the function."""
    original = inspect.unwrap(function)
    key = original.__code__, function.__name__, function.__doc__, repr(original.__kwdefaults__)
    if key not in _parsed:
        signature = inspect.signature(function)
        parsed = _parse(function)
        _parsed[key] = parsed, inspect.signature(function) == signature
        return parsed
    parsed, as_it_was = _parsed[key]
    return dataclasses.replace(parsed, fn=function if as_it_was else transform_context_annotations(function))


@functools.cache
def _check_text(schema: str) -> None:
    _check(json.loads(schema))


@contextmanager
def made_once() -> Iterator[None]:
    """Make schemas, and the trust in the system's certificates, once until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParsedFunction, "from_function", _parse_once)
        patch.setattr(Draft202012Validator, "check_schema", lambda schema: _check_text(json.dumps(schema)))
        patch.setattr(httpcore2, "default_ssl_context", functools.cache(httpcore2.default_ssl_context))
        yield
