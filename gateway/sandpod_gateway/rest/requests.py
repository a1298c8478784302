"""What is asked of every request: whose it is, and a body that is bounded and readable."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final

import pydantic_core
from starlette.requests import ClientDisconnect, Request

from sandpod_gateway.api import messages
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import owner_in
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.limits import BODY_SECONDS, Requests, until_left

ACTS: Final = "sandpod.acts"  # in a request's scope: a list of what it has become, which has a record of its own
COUNTED: Final = "sandpod.counted"  # in a request's scope: it is one of its caller's requests in progress already
_LARGE: Final = "Send large data as one string, or as a file."
_OBJECT: Final = "Send one JSON object, or no body at all."


def key_needed() -> SandpodError:
    """Return a new refusal: one that is raised again and again would keep all that it was raised for."""
    step = "Send it in a header: `Authorization: Bearer KEY` or `X-API-Key: KEY`."
    return SandpodError(ErrorCode.UNAUTHORIZED, "A valid API key or token is needed.", next_step=step)


def need_owner(request: Request) -> str:
    """Return whose request it is. Raises SandpodError (unauthorized)."""
    owner = owner_in(request.scope)
    if owner is None:
        raise key_needed()
    return owner


async def read_object(request: Request, requests: Requests, held: ExitStack) -> dict[str, Any]:
    """Return a request's body, a JSON object. Raises as `read_body` and `parsed` do."""
    return parsed(await read_body(request, requests, held))


async def read_body(request: Request, requests: Requests, held: ExitStack) -> bytes:
    """Return a request's body, which is counted among its caller's until `held` is closed.

    Raises SandpodError: upload_too_large, timeout, rate_limited. ClientDisconnect.
    """
    owner, body = need_owner(request), bytearray()
    if COUNTED not in request.scope:
        requests.enter(owner)
        held.callback(lambda: requests.leave(owner, 0))
    held.callback(lambda: requests.drop(owner, len(body)))
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                if len(body) + len(part) > messages.MAX_BYTES:
                    message = f"The body is over {messages.MAX_BYTES} bytes."
                    step = "Send large data as a file: PUT /api/v1/sandboxes/SANDBOX/files/PATH."
                    raise SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message, next_step=step)
                requests.hold(owner, len(part))
                body += part
    except TimeoutError as error:
        message = f"The body did not come within {BODY_SECONDS:.0f} seconds."
        raise SandpodError(ErrorCode.TIMEOUT, message, next_step="Send the whole request in time.") from error
    return bytes(body)


def parsed(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is; an empty one for none. Raises SandpodError: invalid_argument."""
    if not body.strip():
        return {}
    if messages.crowded(body):
        message = f"The body holds over {messages.MAX_VALUES} values."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=_LARGE)
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        message = f"The body is not readable JSON: {error}."[:256]
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=_OBJECT) from error
    if not isinstance(value, dict):
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, "The body is no JSON object.", next_step=_OBJECT)
    if (fault := messages.fault_of_arguments(value)) is not None:
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, fault, next_step=_LARGE)
    return value


@asynccontextmanager
async def first_ended(*works: Awaitable[Any]) -> AsyncIterator[set[asyncio.Future[Any]]]:
    """Give those of several works that ended first; all are over when this is left."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def while_connected(request: Request, work: Any) -> Any:
    """Return what `work` returns; end it when the client leaves. Raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)
    async with first_ended(task, until_left(request.receive)):
        if task.done():
            return task.result()
        raise ClientDisconnect
