"""The plain HTTP routes, which need no key: probes, metrics, and a file out of a sandbox or into it, by a link.

The link is the right, to one path of one sandbox, until it expires or the key of its maker is revoked. What a sandbox
holds is untrusted, so a browser shows only what can't run script, and that in a sandbox of its own.
"""

import asyncio
import posixpath
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import quote

from cachetools import TTLCache
from fastmcp.server.http import HostOriginGuardMiddleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import Send

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import note
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.links import Links, Method, maker_id
from sandpod_gateway.content import mime_type
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.links import LinkHolder, Transfers
from sandpod_gateway.http.audit import LinkAudit
from sandpod_gateway.http.negotiation import problem
from sandpod_gateway.usage.amounts import Account

AnyRoute = TypeVar("AnyRoute", Route, Mount)

# What a browser may show: nothing in it can run script.
INLINE: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "text/plain"})
_SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
    "Accept-Ranges": "bytes",
}

_ARCHIVES: Final = {"tar.gz": "application/gzip", "zip": "application/zip"}

MAX_UPLOADS: Final = 16  # into one sandbox at a time; each holds a part of a file here
RETRY_SECONDS: Final = 5  # after which an upload too many may try again: nobody knows when one ends
SILENCE: Final = 60.0  # seconds without a byte, after which an upload is given up
CHECK_SECONDS: Final = 1.0  # that one look at the backend answers for; probes ask every few seconds


@dataclass(eq=False)
class FileRoutes:
    """The routes below /files."""

    links: Links
    transfers: Transfers
    audit: AuditLog
    account: Callable[[bytes, str, str], Account]  # to charge, by the maker's key id, the owner and the sandbox
    _uploads: Counter[str] = field(default_factory=Counter, init=False)

    def routes(self, *, hosts: list[str] | None = None) -> list[Route]:
        """Return them. Requests may be for those hosts, in addition to loopback, or for any."""
        around = [Middleware(LinkAudit, log=self.audit)] if self.audit.on else []
        if hosts is not None:
            # From any page: the link is the right.
            around.append(Middleware(HostOriginGuardMiddleware, hosts, ["*"], "strict"))
        files = Route("/files/{sandbox}/{path:path}", self._answer, methods=["GET", "HEAD", "PUT"], middleware=around)
        archives = [f"/archives/{{sandbox}}.{form}" for form in _ARCHIVES]
        return [
            with_any_name(files),
            *(Route(each, self._answer, methods=["GET"], middleware=around) for each in archives),
        ]

    async def _answer(self, request: Request) -> Response:
        sandbox, path = request.path_params["sandbox"], request.path_params.get("path")
        method: Method = "put" if request.method == "PUT" else "get"
        if path is None:
            method, path = "archive", next(form for form in _ARCHIVES if request.url.path.endswith(form))
        of = await self.transfers.files.sandboxes.owner_of(sandbox)
        owner = self.links.owner(request.query_params.get("token", ""), method, sandbox, path, of)
        if owner is None:
            message, step = "This link is not valid, or not any more.", "Ask for a new one with create_link."
            return problem(SandpodError(ErrorCode.FORBIDDEN, message, next_step=step), headers=_SAFE_HEADERS)
        try:
            await self.audit.begin(user=owner, method=method, sandbox=sandbox, path=path)
            account = self.account(maker_id(request.query_params["token"]), owner, sandbox)
            holder = LinkHolder(owner, account)
            if method == "put":
                return await self.take(request, holder, sandbox, path)
            self.transfers.files.sandboxes.meter.check_bytes(account)
            if method == "archive":
                return await self._archive(holder, sandbox, path)
            return await self.send(request, holder, sandbox, path)
        except SandpodError as error:
            note(error=error.code)
            return problem(error, headers=_SAFE_HEADERS)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it

    async def _archive(self, holder: LinkHolder, sandbox: str, form: str) -> Response:
        parts = self.transfers.archive(holder, sandbox, form)
        headers = {
            **_SAFE_HEADERS,
            "Content-Type": _ARCHIVES[form],
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(sandbox, safe='')}.{form}",
            "Accept-Ranges": "none",
        }
        return _Stream(_chained(await anext(parts), parts), headers=headers)

    async def take(self, request: Request, holder: LinkHolder, sandbox: str, path: str) -> Response:
        """Write a request's body to a file. Raises as `Transfers.write` does, rate_limited, or timeout."""
        declared = request.headers.get("content-length", "")
        self.transfers.check_upload(holder, int(declared[:20]) if declared.isdecimal() else 0)
        if self._uploads[sandbox] >= MAX_UPLOADS:
            message = f"{MAX_UPLOADS} uploads into this sandbox are under way, the most at a time."
            step = "Wait for some of them to end."
            raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step, retry_after=RETRY_SECONDS)
        self._uploads[sandbox] += 1
        try:
            size = await self.transfers.write(holder, sandbox, path, timely(request.stream()))
            return JSONResponse({"sandbox": sandbox, "path": path, "size": size}, status_code=201)
        finally:
            self._uploads -= Counter([sandbox])  # keeps no zeros

    async def send(self, request: Request, holder: LinkHolder, sandbox: str, path: str) -> Response:
        """Return a file, or the part that a request asks for. Raises as `Transfers.look` does."""
        version = await self.transfers.look(holder.owner, sandbox, path)
        tag = f'"{version.mtime:.6f}-{version.size}"'
        kind, name = mime_type(path), quote(posixpath.basename(path), safe="")
        headers = {
            **_SAFE_HEADERS,
            "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
            "Content-Disposition": f"{'inline' if kind in INLINE else 'attachment'}; filename*=UTF-8''{name}",
            "ETag": tag,
        }
        wanted = request.headers.get("range") if request.headers.get("if-range", tag) == tag else None
        span = parse_range(wanted, version.size)
        if span is None:
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{version.size}"})
        whole = wanted is None or (span.start, span.stop) == (0, version.size)
        if not whole:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{version.size}"
        status = 200 if whole else 206
        headers["Content-Length"] = str(len(span))
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        self.transfers.files.sandboxes.meter.check_bytes(holder.account, len(span))
        parts = self.transfers.read(holder, sandbox, path, version, span)
        return _Stream(_chained(await anext(parts, b""), parts), status_code=status, headers=headers)


def with_any_name(route: AnyRoute) -> AnyRoute:
    """Return a route whose path may have line breaks in it, as names of files may."""
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
    return route


class _Stream(StreamingResponse):
    """An answer in parts. Where one can't be sent, the connection is closed, so that nobody takes it for whole."""

    async def stream_response(self, send: Send) -> None:
        """Send the parts."""
        try:
            await super().stream_response(send)
        except SandpodError as error:
            note(error=error.code)


async def timely(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what comes; a SandpodError (timeout) where nothing comes for `SILENCE` seconds."""
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            message = f"Nothing came for {SILENCE:.0f} seconds."
            raise SandpodError(ErrorCode.TIMEOUT, message, next_step="Send it again.") from error
        yield chunk


async def _chained(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for part in rest:
            yield part


_RANGE: Final = re.compile(r"\s*bytes\s*=\s*([0-9]{0,19})\s*-\s*([0-9]{0,19})\s*", re.ASCII | re.IGNORECASE)


def parse_range(header: str | None, size: int) -> range | None:
    """Return the bytes that a Range header (RFC 9110) asks for; all where it asks for none, or for several parts.

    None where a file of that size, bytes, has none of those that were asked for.
    """
    match = _RANGE.fullmatch(header or "")
    first, last = match.groups() if match is not None else ("", "")
    if not first and not last:
        return range(size)
    if not first:
        return range(max(0, size - int(last)), size) if int(last) and size else None
    start, stop = int(first), int(last) + 1 if last else size
    if last and stop <= start:
        return range(size)
    return range(start, min(stop, size)) if start < size else None


def metrics_route(registry: CollectorRegistry, middleware: Sequence[Middleware] = ()) -> Route:
    """Return the route of Prometheus metrics."""

    async def answer(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", answer, middleware=middleware)


def health_routes(
    check: Callable[[], Awaitable[None]], registry: CollectorRegistry | None, *, hosts: list[str] | None
) -> list[Route]:
    """Return the routes, with that of metrics where there is a registry.

    `check` asks the backend for next to nothing, and raises SandpodError where that fails. Requests may be for those
    hosts, or for any: kubelet and Prometheus ask by address.
    """
    lock = asyncio.Lock()
    recent: TTLCache[str, Response] = TTLCache(1, CHECK_SECONDS)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        async with lock:  # anybody may ask, so one check answers all for a second
            answer = recent.get("answer")
            if answer is None:
                try:
                    await check()
                    answer = PlainTextResponse("ready\n")
                except SandpodError as error:
                    answer = problem(error, status=503)
                recent["answer"] = answer
            return answer

    guard = [] if hosts is None else [Middleware(HostOriginGuardMiddleware, allowed_hosts=hosts, mode="strict")]
    routes = [Route("/healthz", healthz, middleware=guard), Route("/readyz", readyz, middleware=guard)]
    return routes if registry is None else [*routes, metrics_route(registry, guard)]
