"""What every request over HTTP goes through before it reaches a route."""

from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from sandpod_gateway.console.session import SessionCookies, Sessions
from sandpod_gateway.e2b.hosts import Hosts
from sandpod_gateway.http.attempts import Attempts
from sandpod_gateway.http.forwarded import ForwardedHeaders
from sandpod_gateway.http.handshakes import Handshakes
from sandpod_gateway.http.mcp.peers import Peers
from sandpod_gateway.http.measuring import MeasuredRequests
from sandpod_gateway.metrics import Face, Metrics
from sandpod_gateway.rest.terminal import WEBSOCKETS
from sandpod_gateway.settings import Settings

FACES: Final[dict[str, Face]] = {
    **dict.fromkeys(("mcp", "sse", "messages"), "mcp"),
    **dict.fromkeys(("", "console"), "console"),
    **dict.fromkeys(("files", "archives"), "files"),
    **dict.fromkeys(("healthz", "readyz", "metrics"), "health"),
    **dict.fromkeys((".well-known", "authorize", "token", "register", "revoke", "consent", "auth"), "sign_in"),
    "api/v1": "rest",
    "e2b": "e2b",
}
"""Ways in by the first part of a path."""

# Headers that pages of `allowed_origins` may read: of MCP, of refusals, and of files.
_FOR_PAGES: Final = (
    *("mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"),
    *("content-disposition", "content-range", "etag", "link", "location"),
)


def around(settings: Settings, peers: Peers, metrics: Metrics, sessions: Sessions) -> list[Middleware]:
    """Return it, the outermost first."""
    found = [Middleware(Handshakes, paths=WEBSOCKETS)]
    if settings.trusted_proxies or settings.peers.name is not None:
        found.append(Middleware(ForwardedHeaders, trusted=settings.trusted_proxies, peers=peers))
    if settings.console.enabled:
        found.append(Middleware(SessionCookies, sessions=sessions))
    found.append(Middleware(Attempts, metrics=metrics))
    if settings.e2b.enabled and settings.e2b.domain is not None:
        found.append(Middleware(Hosts, domain=settings.e2b.domain))
    found.append(Middleware(MeasuredRequests, metrics=metrics, faces=FACES))
    if settings.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["*"],
                expose_headers=_FOR_PAGES,
            )
        )
    return found
