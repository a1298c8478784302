"""Contents of files: each is read and written as the REST API does it, and answered as E2B does."""

import json
import posixpath
from collections import deque
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.e2b.calls import SANDBOX
from sandpod_gateway.e2b.envd.uploads import plain
from sandpod_gateway.e2b.errors import NotHereError
from sandpod_gateway.e2b.paths import inside, outside
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.rest.files import RestFiles

SIGNED: Final = "sandpod.e2b.signed"  # in the scope of a request whose address says who has signed it
MAX_FILES: Final = 1000  # in one request
MAX_BOUNDARY: Final = 70  # characters, as RFC 2046 has it
_STEP: Final = "Send multipart/form-data, or a single file as application/octet-stream."
_OF_THE_BODY: Final = frozenset({b"content-encoding", b"content-length", b"content-type"})


class Piece(NamedTuple):
    """A piece of a multipart body: the head of a part with its file name, some of its content, or its end."""

    kind: Literal["head", "content", "end"]
    data: bytes = b""


class Multipart:
    """Takes a body apart as it comes; nothing of it is kept."""

    def __init__(self, boundary: bytes) -> None:
        self._pieces: deque[Piece] = deque()
        self._name, self._value, self._disposition = b"", b"", b""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_header_field": self._take_name,
                "on_header_value": self._take_value,
                "on_header_end": self._take_header,
                "on_headers_finished": self._take_head,
                "on_part_data": lambda data, start, end: self._pieces.append(Piece("content", data[start:end])),
                "on_part_end": lambda: self._pieces.append(Piece("end")),
                "on_end": self._take_end,
            },
        )

    async def pieces(self, body: AsyncIterator[bytes]) -> AsyncIterator[Piece]:
        """Yield them. Raises SandpodError: invalid_argument."""
        try:
            async for chunk in body:
                self._parser.write(chunk)
                while self._pieces:
                    yield self._pieces.popleft()
        except MultipartParseError as error:
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, "The body is no multipart body.", next_step=_STEP) from error
        if not self._ended:
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, "The body breaks off.", next_step="Send it again.")

    def _take_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _take_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _take_head(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        self._pieces.append(Piece("head", options.get(b"filename", b"")))

    def _take_end(self) -> None:
        self._ended = True


class Contents:
    """The route /files."""

    def __init__(self, files: RestFiles) -> None:
        self._files = files

    async def answer(self, request: Request) -> ASGIApp:
        """Read a file, or write some."""
        wanted = request.query_params.get("path")
        if request.method != "POST":
            inner = _inner(request, request.method, _checked(wanted))
            app = await self._files.answer(inner)
            return lambda _, receive, send: app(inner.scope, receive, send)
        if any(name.startswith("x-metadata-") for name in request.headers):
            raise NotHereError("Files have no metadata here.")
        body = plain(request.stream(), request.headers.get("content-encoding", ""))
        kind, options = parse_options_header(request.headers.get("content-type"))
        if kind == b"application/octet-stream":
            return _written([await self._write(request, _checked(wanted), body)])
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY:
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, "The body is no files.", next_step=_STEP)
        pieces, paths = Multipart(boundary).pieces(body), list[str]()
        async for piece in pieces:
            if piece.kind == "head":
                # Who signed an address with a path meant one file alone.
                most = 1 if wanted and SIGNED in request.scope else MAX_FILES
                if len(paths) >= most:
                    step = "Send them in several requests."
                    raise SandpodError(ErrorCode.INVALID_ARGUMENT, f"More than {most} files came.", next_step=step)
                path = _checked(wanted if wanted is not None and not paths else piece.data.decode("utf-8", "replace"))
                paths.append(await self._write(request, path, _content(pieces)))
        return _written(paths)

    async def _write(self, request: Request, path: str, content: AsyncIterator[bytes]) -> str:
        """Write a file, and return its path. Raises what the REST API refuses. ClientDisconnect."""

        async def receive() -> Message:
            chunk = await anext(content, None)
            return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

        status, body = 0, bytearray()

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        inner = _inner(request, "PUT", path)
        app = await self._files.answer(inner)
        await app(inner.scope, receive, send)
        if not status:
            raise ClientDisconnect
        if status >= HTTPStatus.BAD_REQUEST:
            said: dict[str, Any] = json.loads(body)
            raise SandpodError(ErrorCode(said["error"]), said["message"], cause=said["cause"], next_step=said["next"])
        return path


def _inner(request: Request, method: str, path: str) -> Request:
    """Return a request as the REST API gets it, without a body."""
    headers = [each for each in request.scope["headers"] if each[0] not in _OF_THE_BODY]
    where = {"sandbox": request.scope[SANDBOX], "path": path}
    return Request({**request.scope, "method": method, "headers": headers, "path_params": where}, request.receive)


def _checked(path: str | None) -> str:
    if not path:
        raise SandpodError(ErrorCode.INVALID_PATH, "`path` is missing.", next_step="Name the file.")
    return inside(path)


async def _content(pieces: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if piece.kind == "end":
            return
        yield piece.data


def _written(paths: list[str]) -> Response:
    whole = [outside(path) for path in paths]
    return JSONResponse([{"name": posixpath.basename(path), "type": "file", "path": path} for path in whole])
