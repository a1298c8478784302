"""Refusals as E2B's clients read them. Pure."""

from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

GONE: Final = frozenset({ErrorCode.SESSION_NOT_FOUND, ErrorCode.SANDBOX_LOST})
"""What a sandbox that is not there, or not any more, is answered with."""

# Connect's codes (connectrpc.com/docs/protocol) by HTTP status, and where the status does not tell.
_CODES: Final = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "already_exists",
    413: "resource_exhausted",
    429: "resource_exhausted",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    507: "resource_exhausted",
}
_OTHER_CODES: Final = {ErrorCode.SESSION_BUSY: "failed_precondition"}


class NotHereError(SandpodError):
    """What E2B has and Sandpod does not."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_ARGUMENT, message, next_step="Do without it.")


def sentence(error: SandpodError) -> str:
    """Return what is said of a refusal."""
    return f"{error.message.rstrip('.')} ({error.cause.rstrip('.')})." if error.cause else error.message


def answer(error: SandpodError) -> Response:
    """Return a refusal of the API that manages sandboxes."""
    status = HTTPStatus.NOT_IMPLEMENTED if isinstance(error, NotHereError) else error.code.http_status
    if error.code in GONE:
        status = HTTPStatus.NOT_FOUND
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    return JSONResponse({"code": status, "message": sentence(error)}, status_code=status, headers=headers)


def answer_inside(error: SandpodError) -> Response:
    """Return a refusal of what is served for one sandbox: one that is gone is what a proxy before it would report."""
    if error.code not in GONE:
        return answer(error)
    body = {"code": int(HTTPStatus.BAD_GATEWAY), "message": "The sandbox was not found."}
    return JSONResponse(body, status_code=HTTPStatus.BAD_GATEWAY)


def connect_error(error: SandpodError) -> dict[str, Any]:
    """Return a refusal as Connect RPC has it in a body."""
    if error.code in GONE:
        return {"code": "unavailable", "message": "The sandbox was not found."}
    if isinstance(error, NotHereError):
        return {"code": "unimplemented", "message": sentence(error)}
    code = _OTHER_CODES.get(error.code) or _CODES.get(error.code.http_status, "internal")
    return {"code": code, "message": sentence(error)}


def connect_status(error: SandpodError) -> int:
    """Return the HTTP status of a refused call of Connect RPC."""
    if error.code in GONE:
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.NOT_IMPLEMENTED if isinstance(error, NotHereError) else error.code.http_status
