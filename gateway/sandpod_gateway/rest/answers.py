"""Answers: a tool's result as JSON, and a refusal as problem details (RFC 9457) with the tools' own fields."""

import base64
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent
from starlette.responses import JSONResponse, Response

from sandpod_gateway.api.results import ErrorCode, Problem
from sandpod_gateway.content import Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.rest.operations import PREFIX, Operation

PROBLEM: Final = "application/problem+json"


class ProblemDetails(Problem):
    """A refused request."""

    type: str = "about:blank"
    title: str  # the status in words
    status: int  # of HTTP
    detail: str  # what went wrong, in a sentence


def answer(result: ToolResult, operation: Operation) -> Response:
    """Return a tool's result; pictures, which MCP has as blocks of their own, are in `pictures`."""
    body = dict(result.structured_content or {})
    if result.is_error:
        return problem(body)
    pictures = [block for block in result.content if isinstance(block, ImageContent)]
    if pictures:
        body["pictures"] = [{"mime_type": each.mime_type, "data_base64": each.data} for each in pictures]
    headers = {}
    if operation.location is not None:
        headers["Location"] = PREFIX + operation.location.format(**body)
    return JSONResponse(body, status_code=operation.status, headers=headers)


def as_json(picture: Picture) -> dict[str, str]:
    """Return a picture as an answer has it."""
    return {"mime_type": picture.mime_type, "data_base64": base64.b64encode(picture.data).decode("ascii")}


def refused(error: SandpodError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request that is refused."""
    return problem(error.problem().model_dump(mode="json"), headers)


def problem(
    body: dict[str, Any], headers: Mapping[str, str] | None = None, status: HTTPStatus | None = None
) -> Response:
    """Return a refusal, from the fields of a `Problem`; its code decides on the status unless one is given."""
    status = status or HTTPStatus(ErrorCode(body["error"]).http_status)
    details = ProblemDetails(**body, title=status.phrase, status=status, detail=body["message"]).model_dump(mode="json")
    sent = dict(headers or {})
    if (seconds := body.get("retry_after_seconds")) is not None:
        sent["Retry-After"] = str(seconds)
    if status == HTTPStatus.UNAUTHORIZED:
        sent.setdefault("WWW-Authenticate", "Bearer")
    return JSONResponse(details, status_code=status, headers=sent, media_type=PROBLEM)
