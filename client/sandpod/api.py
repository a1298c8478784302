"""Requests to a server's REST API: addresses, keys, refusals as errors, and lists in one piece."""

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx2

from sandpod.endpoint import Endpoint
from sandpod.errors import InvalidArgumentError, LimitError, SandpodError, UnreachableError, refused, unreachable
from sandpod.transport import Answer, Transport

PREFIX: Final = "/api/v1"
TRIES: Final = 3  # of a request that does no harm when it is sent twice
MAX_ANSWER: Final = 64 * 2**20  # bytes of JSON
_PAUSE: Final = 0.2  # seconds before the second try; each later one waits twice as long
_NO_SERVER: Final = "what answers there is no Sandpod server"


def pause(failures: int) -> float:
    """Return how many seconds to wait after so many failures."""
    return float(min(_PAUSE * 2 ** (failures - 1), 5.0))


def file_path(sandbox: str, path: str) -> str:
    """Return the address of a file, below PREFIX."""
    return f"/sandboxes/{quote(sandbox, safe='')}/files/{quote(path.encode(errors='surrogateescape'))}"


class Api:
    """One server, which is looked for when it is needed first."""

    def __init__(self, http: Transport, where: Callable[[], Endpoint]) -> None:
        self.http = http
        self.url = ""  # of the server, once it is known
        self._where = where
        self.headers = {"Accept-Encoding": "identity", "User-Agent": "sandpod-client"}

    async def find(self) -> None:
        """Find the server, which may be one that is started here. Raises SandpodError."""
        if not self.url:
            endpoint = await self.http.work(self._where)
            if endpoint.key is not None:
                self.headers["Authorization"] = f"Bearer {endpoint.key}"
            self.url = endpoint.url

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = TRIES,
    ) -> Any:
        """Return the JSON that a request is answered with; arguments that are None are left out.

        Raises:
            SandpodError: It was refused, or the server can't be reached.
        """
        again = method in {"GET", "DELETE"} or "Idempotency-Key" in (headers or {})
        for failures in range(1, tries + 1):
            try:
                async with self.stream(method, path, body, query=query, headers=headers) as answer:
                    return _json(await _read(answer), self.url)
            except UnreachableError:
                if not again or failures == tries:
                    raise
                await self.http.sleep(pause(failures))
        raise AssertionError

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | AsyncGenerator[bytes, None] | bytes | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Answer]:
        """Give an answer whose body is read as it comes. Raises SandpodError."""
        await self.find()
        what: dict[str, Any] = {"headers": {**self.headers, **(headers or {})}}
        if isinstance(body, Mapping):
            what["json"] = _given(body)
        elif isinstance(body, bytes):
            what["content"] = body
        elif body is not None:
            what["content"] = self.http.body(body)
        if query:
            what["params"] = _given(query)
        try:
            answer = await self.http.send(self.http.request(method, self.url + PREFIX + path, **what))
            try:
                if not answer.response.is_success:
                    raise _refusal(answer.response.status_code, await _read(answer), self.url)
                yield answer
            finally:
                await answer.close()
        except httpx2.TransportError as error:
            raise unreachable(self.url, str(error) or type(error).__name__) from error
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise InvalidArgumentError("invalid_argument", "That can't be sent.", "Correct it.") from error

    async def pages(self, path: str, field: str, query: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the entries of all pages of a list. Raises SandpodError: there are more than a server lists."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = await self.call("GET", path, query={**(query or {}), "limit": 1000, "cursor": cursor})
            found += page[field]
            if page.get("truncated"):
                step = "Ask for a smaller part, such as a folder in it."
                raise LimitError("invalid_argument", f"There are more {field} than a list can have.", step)
            cursor = page.get("next")
            if cursor is None:
                return found

    async def close(self) -> None:
        """Close all connections."""
        await self.http.close()


def new_key() -> str:
    """Return a key by which a request that is sent twice is done once."""
    return secrets.token_urlsafe(12)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def _read(answer: Answer) -> bytes:
    body = bytearray()
    async for piece in answer.pieces():
        body += piece
        if len(body) > MAX_ANSWER:
            raise httpx2.RemoteProtocolError("the answer is too large")
    return bytes(body)


def _json(body: bytes, url: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise unreachable(url, _NO_SERVER) from error


def _refusal(status: int, body: bytes, url: str) -> SandpodError:
    try:
        return refused(json.loads(body), status)
    except (ValueError, KeyError, TypeError):
        return unreachable(url, f"it answers with HTTP status {status}")
