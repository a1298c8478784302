"""Lists in pages: the page that a request asks for, where the next one is, and whether the client has it already."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self

from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.rest.operations import Listing
from sandpod_gateway.usage.report import Report

LIMIT: Final = 100  # entries of a page that says nothing of it
MAX_LIMIT: Final = 1000
MAX_CURSOR: Final = 32 * 1024  # characters: of the longest path
_CSV: Final = "text/csv"
_CHANGING: Final = frozenset({"age_seconds"})  # what is another in each answer, and no change


@dataclass(frozen=True, slots=True)
class Page:
    """What a request asks for of a list.

    Entries are ordered by what they are named by, and the cursor is the name of the last one, so that a page neither
    repeats nor leaves out an entry, whatever else comes and goes meanwhile.
    """

    listing: Listing
    limit: int
    after: tuple[str, ...]  # the last entry of the page before; empty for the first page
    csv: bool

    @classmethod
    def asked(cls, listing: Listing, query: dict[str, Any], accept: str) -> Self:
        """Return what a query asks for, and take that out of it. Raises SandpodError: invalid_argument."""
        form = query.pop("format", "csv" if accept.strip().startswith(_CSV) else "json") if listing.csv else "json"
        if form not in {"json", "csv"}:
            raise _wrong("format is json or csv.")
        if not listing.order:  # the tool has pages of its own
            return cls(listing, 0, (), form == "csv")
        limit = query.pop("limit", str(LIMIT))
        if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_LIMIT:
            raise _wrong(f"limit is 1 to {MAX_LIMIT}.")
        if listing.tool_limit is not None:
            query["limit"] = listing.tool_limit
        after = name_in(query.pop("cursor", ""), len(listing.order))
        return cls(listing, int(limit), after, form == "csv")

    def of(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a tool's whole result as this page of it, with `next`, which is null on the last one."""
        if not self.listing.order:
            return body
        rest = sorted((each for each in self._entries(body) if self._name(each) > self.after), key=self._name)
        page = rest[: self.limit]
        return {**body, self.listing.field: page, "next": cursor_of(self._name(page[-1])) if rest != page else None}

    def answer(self, request: Request, body: dict[str, Any]) -> Response:
        """Return the answer to a request, or that its client has this already."""
        body = self.of(body)
        headers = {
            "ETag": self._tag(body),
            "Vary": "Accept, Authorization, X-API-Key",
            "Cache-Control": "private, no-cache",
        }
        if (cursor := body.get("next")) is not None:
            url = request.url.include_query_params(cursor=cursor)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        if is_known(request.headers, headers["ETag"]):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if self.csv:
            rows = [tuple(row.get(column, "") for column in body["columns"]) for row in self._entries(body)]
            return Response(Report(tuple(body["columns"]), rows).csv(), headers=headers, media_type=_CSV)
        return Response(json.dumps(body), headers=headers, media_type="application/json")

    def _tag(self, body: dict[str, Any]) -> str:
        entries = [{key: value for key, value in each.items() if key not in _CHANGING} for each in self._entries(body)]
        return f"W/{tag_of(json.dumps({**body, self.listing.field: entries, 'csv': self.csv}).encode())}"

    def _entries(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = body[self.listing.field]
        return found

    def _name(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(entry.get(field) or "") for field in self.listing.order)


def is_known(headers: Mapping[str, str], tag: str) -> bool:
    """Return whether a client says that it has what a tag is of (RFC 9110, If-None-Match)."""
    known = [each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")]
    return "*" in known or tag.removeprefix("W/") in known


def tag_of(content: bytes) -> str:
    """Return the tag of what is the same for as long as its bytes are."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def cursor_of(name: tuple[str, ...]) -> str:
    """Return the cursor of what comes after an entry of that name."""
    return base64.urlsafe_b64encode(json.dumps(name).encode()).decode().rstrip("=")


def name_in(cursor: str, parts: int) -> tuple[str, ...]:
    """Return the name in a cursor, of so many parts; () for no cursor. Raises SandpodError: invalid_argument."""
    if not cursor:
        return ()
    try:
        name = json.loads(
            base64.b64decode(cursor[:MAX_CURSOR] + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
    except (ValueError, RecursionError):
        name = None
    if not isinstance(name, list) or len(name) != parts or not all(isinstance(each, str) for each in name):
        raise _wrong("The cursor is none of this list.")
    return tuple(name)


def _wrong(message: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Correct it, or leave it out.")
