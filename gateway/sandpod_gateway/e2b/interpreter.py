"""E2B's code interpreter: code runs in contexts, whose variables stay; its output comes as lines of JSON."""

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from http import HTTPStatus
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language
from sandpod_gateway.e2b.calls import SANDBOX, Calls
from sandpod_gateway.e2b.envd.rpc import Streamed
from sandpod_gateway.e2b.errors import sentence
from sandpod_gateway.e2b.paths import HOME, inside
from sandpod_gateway.e2b.results import end_events
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.rest.requests import read_object
from sandpod_gateway.runs.follow import Check
from sandpod_gateway.runs.request import OTHER_NAMES

DEFAULTS: Final = {Language.PYTHON: "default", Language.JAVASCRIPT: "default-javascript"}
"""The context of each language that has some, for code that names none."""
LINES: Final = "application/x-ndjson"
_STARTED: Final = 30.0  # seconds that a new context's process has for its start
_STOP_SECONDS: Final = 10.0


class Interpreter:
    """The routes below /execute and /contexts."""

    def __init__(self, calls: Calls, limits: RunLimits) -> None:
        self._calls = calls
        self._limits = limits

    async def execute(self, request: Request, check: Check) -> Response:
        """Run code, and stream what it does; it is stopped if the client leaves."""
        with ExitStack() as held:
            body = await read_object(request, self._calls.requests, held)
            arguments = await self._arguments(request, body)
            begun, _ = await self._calls.tool(request, "start_run", **arguments)
        return Streamed(self._lines(begun["run_id"], check), media_type=LINES, headers={"X-Accel-Buffering": "no"})

    async def contexts(self, request: Request) -> Response:
        """List the contexts, or make one."""
        if request.method == "GET":
            listed, _ = await self._calls.tool(request, "list_contexts", sandbox=request.scope[SANDBOX])
            return JSONResponse([_context(each["name"], each["language"]) for each in listed["contexts"]])
        with ExitStack() as held:
            body = await read_object(request, self._calls.requests, held)
        language, cwd, name = _language(body), str(body.get("cwd") or HOME), secrets.token_hex(8)
        if language not in DEFAULTS:
            raise SandpodError(ErrorCode.UNSUPPORTED_LANGUAGE, f"There are no contexts of {language}.", next_step="")
        await self._make(request, name, language, cwd)
        return JSONResponse(_context(name, language, cwd), status_code=HTTPStatus.CREATED)

    async def context(self, request: Request) -> Response:
        """Remove a context, or begin it anew."""
        found = await self._find(request, request.path_params["context"])
        await self._calls.tool(request, "restart_context", context=found["name"], sandbox=request.scope[SANDBOX])
        if request.method == "POST":
            await self._make(request, found["name"], found["language"], HOME)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _make(self, request: Request, name: str, language: str, cwd: str) -> None:
        sandbox = request.scope[SANDBOX]
        made, _ = await self._calls.tool(
            request, "start_run", code="", language=language, sandbox=sandbox, context=name, cwd=inside(cwd)
        )
        await self._calls.tool(request, "read_run", run_id=made["run_id"], wait=_STARTED, until="end", max_output=100)

    async def _find(self, request: Request, name: str) -> dict[str, Any]:
        listed, _ = await self._calls.tool(request, "list_contexts", sandbox=request.scope[SANDBOX])
        found = next((each for each in listed["contexts"] if each["name"] == name), None)
        if found is None:
            raise SandpodError(ErrorCode.NOT_FOUND, "There is no such context.", next_step="List the contexts.")
        return dict(found)

    async def _arguments(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Return what `start_run` is to do."""
        language, context = _language(body), body.get("context_id")
        if context is not None:
            found = await self._find(request, context)
            language = found["language"]
        arguments = {
            "code": body.get("code"),
            "language": language,
            "sandbox": request.scope[SANDBOX],
            "context": context or DEFAULTS.get(Language(language)) if language in set(Language) else None,
            "env": body.get("env_vars") or None,
            "timeout": self._limits.max_run_timeout,  # the client leaves at its own
        }
        return {name: value for name, value in arguments.items() if value is not None}

    async def _lines(self, run_id: str, check: Check) -> AsyncIterator[bytes]:
        ended = False
        try:
            async with aclosing(self._calls.follow(run_id, check)) as following:
                async for found in following:
                    if found is None:
                        yield _line({"type": "keepalive"})
                        continue
                    output = found.result
                    for name in ("stdout", "stderr"):
                        if text := getattr(output, name):
                            yield _line({"type": name, "text": text, "timestamp": time.time_ns()})
                    if output.result is not None:
                        ended = True
                        for event in end_events(output.result, found.pictures):
                            yield _line(event)
        except SandpodError as error:
            yield _line({"type": "error", "name": str(error.code), "value": sentence(error), "traceback": ""})
        finally:
            if not ended:
                with anyio.move_on_after(_STOP_SECONDS, shield=True):
                    await self._calls.mcp.call_tool("stop_run", {"run_id": run_id})


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _language(body: dict[str, Any]) -> str:
    given = body.get("language") or Language.PYTHON
    if not isinstance(given, str):
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, "`language` is no text.", next_step="Name a language.")
    name = given.strip().lower()
    return str(OTHER_NAMES.get(name, name))


def _context(name: str, language: str, cwd: str = HOME) -> dict[str, str]:
    return {"id": name, "language": language, "cwd": cwd}
