"""Hosts of sandboxes: PORT-SANDBOX.domain means the sandbox, api.domain what manages them. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX: Final = "/e2b"
SANDBOX_HEADER: Final = "e2b-sandbox-id"
PORT_HEADER: Final = "e2b-sandbox-port"
_NAME: Final = re.compile(r"([0-9]{1,5})-([a-z0-9][a-z0-9.-]*)", re.ASCII)
_API: Final = "api"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Sends requests for such hosts to the app below the prefix."""

    app: ASGIApp
    domain: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.app(addressed(scope, self.domain) if scope["type"] == "http" else scope, receive, send)


def hosts_of(domain: str | None) -> list[str]:
    """Return the hosts that requests may be for."""
    return [] if domain is None else [f"*.{domain}"]


def addressed(scope: Scope, domain: str) -> Scope:
    """Return a request as one that names its sandbox in headers, where its host does."""
    host = Headers(scope=scope).get("host", "").lower().partition(":")[0]
    name = host.removesuffix(f".{domain}")
    match = _NAME.fullmatch(name)
    if name == host or not (match or name == _API):
        return scope
    headers = MutableHeaders(raw=list(scope["headers"]))
    if match is not None:
        headers[PORT_HEADER], headers[SANDBOX_HEADER] = match.groups()
    # One that another gateway has passed on has the prefix.
    path = scope["path"] if scope["path"].startswith(f"{PREFIX}/") else PREFIX + scope["path"]
    return {**scope, "headers": headers.raw, "path": path, "raw_path": path.encode()}
