"""The other gateways of an installation, and requests that are passed on to them.

A name leads to the addresses of all gateways, as that of a headless Service does. A request goes, with its credential,
to these addresses alone; with TLS, only to a gateway that has this one's own certificate.
"""

import asyncio
import hashlib
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, Self

import anyio
import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from mcp_types import INTERNAL_ERROR
from pydantic import model_validator
from starlette.types import Receive, Scope, Send

from sandpod_gateway.api.messages import Refusal, readable_id
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.certificates import MAX_FILE
from sandpod_gateway.http.connections import PASSED_ON
from sandpod_gateway.http.limits import until_left
from sandpod_gateway.metrics import Metrics
from sandpod_telemetry import attributes, tracing

POLL_SECONDS: Final = 5.0  # between two looks for other gateways; as long as CoreDNS keeps an answer
LOOK_SECONDS: Final = 5.0  # for one look
KEPT_SECONDS: Final = 60.0  # without a look that succeeded, after which none of those found before is believed
# A gateway sends something every 15 seconds while a call is in progress.
_TIMEOUT: Final = httpx2.Timeout(connect=2, read=60, write=60, pool=None)
_NO_REUSE: Final = httpx2.Limits(max_keepalive_connections=0)  # a kept connection may end with the next request
# Of one connection, not of the request (RFC 9110, 7.6.1), or written anew.
_NOT_PASSED: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"content-length", b"expect", b"x-forwarded-for", b"x-forwarded-proto", b"date", PASSED_ON),
    )
)
UNREACHABLE: Final = "unreachable"
_PASSED_ON: Final = "sandpod.passed_on"  # in the scope of a request that another gateway has passed on


class PeerSettings(StrictModel):
    """The other gateways of one installation, for sessions of MCP clients before revision 2026-07-28."""

    name: str | None = None
    """Host name that leads to all gateways, as that of a headless Service; all listen on the same port. Default: there
    is one gateway."""
    address: IPv4Address | IPv6Address | None = None
    """Address of this one among them."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.name is None) != (self.address is None):
            raise ValueError("peers.name and peers.address go together")
        return self


@dataclass(eq=False, kw_only=True)
class Peers:
    """The other gateways, as the last look found them; none without settings."""

    settings: PeerSettings
    metrics: Metrics
    port: int  # that all gateways listen on
    chain: Path | None = None  # file of the certificate chain that all gateways have, where they use TLS
    clock: Callable[[], float] = time.monotonic  # seconds
    others: frozenset[str] = field(default=frozenset(), init=False)  # addresses
    _process: str = field(default_factory=lambda: secrets.token_hex(4), init=False)
    _seen: float = field(default=0.0, init=False)  # when the last look succeeded
    _tls: ssl.SSLContext | None = field(default=None, init=False)

    @property
    def prefix(self) -> str:
        """What the ids of sessions that begin here begin with: the gateway's place, and which process it is there."""
        return f"{place_of(self.address)}{self._process}-"

    @property
    def address(self) -> str:
        """The address of this gateway among them; empty where none is known."""
        return str(self.settings.address or "")

    async def refresh(self) -> None:
        """Look for the others. Raises SandpodError (backend_unavailable): that failed; those found stay for a while."""
        if self.settings.name is None:
            return
        try:
            if self.chain is not None:
                self._tls = await asyncio.to_thread(_same_certificate, self.chain)
            async with asyncio.timeout(LOOK_SECONDS):
                self.others = await self._look_up(self.settings.name) - {self.address}
        except (OSError, ValueError) as error:
            if self.clock() - self._seen > KEPT_SECONDS:
                self.others = frozenset()  # an address may be somebody else's by now
            message = f"The other gateways can't be found by the name {self.settings.name}."
            step = "Sessions of older MCP clients that began at them are opened again. Look at the cluster's DNS."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=str(error), next_step=step) from error
        self._seen = self.clock()

    async def _look_up(self, name: str) -> frozenset[str]:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        look = asyncio.get_running_loop().getaddrinfo
        try:
            found = await look(name, self.port, family=family, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno not in {socket.EAI_NONAME, socket.EAI_NODATA}:
                raise
            found = []  # this one is not there yet either
        return frozenset(str(each[4][0]) for each in found)

    def home(self, session: str, place: str) -> str:
        """Return the address of the gateway that has a session, by where it began; if that is gone, of its successor.

        All gateways that know of the same others agree on it (rendezvous hashing).
        """
        gateways = self.others | {self.address}
        return max(gateways, key=lambda each: (place_of(each) == place, _digest(f"{each} {session}")))

    async def pass_on(self, address: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> bool:
        """Have another gateway answer a request; return False if it can't be reached. The answer is streamed.

        A gateway that can't be reached is gone until the next look finds it again.
        """
        if not tracing.in_trace():  # nor is one begun: a client may name its trace in the message
            return await self._pass_on(address, body, scope, receive, send)
        known = {attributes.METHOD: scope["method"], attributes.SERVER: address}
        with tracing.span("gateway.pass_on", known, kind="client"):
            passed = {**scope, "headers": tracing.followed(scope["headers"])}
            answered = await self._pass_on(address, body, passed, receive, send)
            if not answered:
                tracing.fail(UNREACHABLE)
            return answered

    async def _pass_on(self, address: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> bool:
        scheme, host = "http" if self.chain is None else "https", f"[{address}]" if ":" in address else address
        query = scope["query_string"].decode("latin-1")
        request = httpx2.Request(
            scope["method"],
            f"{scheme}://{host}:{self.port}{scope['path']}{query and '?' + query}",
            headers=_passed(scope),
            content=body,
        )
        verify = False if self.chain is None else self._tls or True
        transport = httpx2.AsyncHTTPTransport(verify=verify, limits=_NO_REUSE, local_address=self.address)
        async with httpx2.AsyncClient(transport=transport, timeout=_TIMEOUT) as http:
            result = await _relay(http, request, body, receive, send)
        self.metrics.passed_on.labels(result).inc()
        if result == UNREACHABLE:
            self.others -= {address}
        return result != UNREACHABLE


def place_of(address: str) -> str:
    """Return what a session's id says of the gateway where it began."""
    return _digest(address)[:8]


def mark_passed_on(scope: Scope) -> None:
    """Mark a request as one that another gateway has passed on."""
    scope[_PASSED_ON] = True


def was_passed_on(scope: Scope) -> bool:
    """Return whether another gateway has passed a request on: it has counted it, and goes no further."""
    return _PASSED_ON in scope


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _same_certificate(chain: Path) -> ssl.SSLContext:
    """Return a context for connections to those who have this very certificate, whatever names it is for."""
    with chain.open("rb") as file:
        leaf = x509.load_pem_x509_certificates(file.read(MAX_FILE))[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=leaf.public_bytes(Encoding.PEM).decode())
    return context


def _passed(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers that go on, and whom the request is from."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED]
    if (client := scope.get("client")) is not None:
        headers.append((b"x-forwarded-for", client[0].encode()))
    return [*headers, (b"x-forwarded-proto", scope["scheme"].encode()), (PASSED_ON, b"1")]


async def _relay(http: httpx2.AsyncClient, request: httpx2.Request, body: bytes, receive: Receive, send: Send) -> str:
    """Send a request, stream its answer, and return how that went. The other gateway learns when the client leaves."""
    started = left = complete = False

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal left
        await until_left(receive)
        left = True
        scope.cancel()

    try:
        async with aclosing(await http.send(request, stream=True)) as answer:
            headers = [(name.lower(), value) for name, value in answer.headers.raw]
            headers = [each for each in headers if each[0] not in _NOT_PASSED]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            started = True
            async with anyio.create_task_group() as group:
                # Not before: what a client sends counts, also if it does not wait for the answer.
                group.start_soon(watch, group.cancel_scope)
                complete = await _stream(answer, send)
                group.cancel_scope.cancel()
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        return UNREACHABLE
    except httpx2.HTTPError:
        pass
    if complete or left:
        await send({"type": "http.response.body", "body": b""})
        return "answered" if complete else "left"
    await _tell_lost(body, send, started=started)
    return "lost"


async def _stream(answer: httpx2.Response, send: Send) -> bool:
    """Send an answer's body on; return whether all of it came."""
    try:
        async for part in answer.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except httpx2.HTTPError:
        return False
    return True


async def _tell_lost(body: bytes, send: Send, *, started: bool) -> None:
    """Answer a request whose gateway ended before its answer, which may be a stream that has begun."""
    step = "Look at what the call did, then call again."
    text = "The gateway that answered this call ended."
    answer = Refusal(readable_id(body), INTERNAL_ERROR, text, ErrorCode.BACKEND_ERROR, step).body()
    if not started:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": HTTPStatus.BAD_GATEWAY, "headers": headers})
    elif body:  # after what may be part of an event
        answer = b"\r\n\r\nevent: message\r\ndata: " + answer + b"\r\n\r\n"
    else:
        answer = b""
    await send({"type": "http.response.body", "body": answer})
