"""What every request over HTTP goes through before it reaches a route."""

from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from sandpod_gateway.console.session import SessionCookies, Sessions
from sandpod_gateway.http.attempts import Attempts
from sandpod_gateway.http.forwarded import ForwardedHeaders
from sandpod_gateway.http.handshakes import Handshakes
from sandpod_gateway.http.peers import Peers
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.rest.terminal import WEBSOCKETS
from sandpod_gateway.settings import Settings

# Headers that pages of `allowed_origins` may read: of MCP, of refusals, and of files.
_FOR_PAGES: Final = (
    *("mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"),
    *("content-disposition", "content-range", "etag", "link", "location"),
)


def around(settings: Settings, peers: Peers, metrics: Metrics, sessions: Sessions) -> list[Middleware]:
    """Return it, the outermost first."""
    around = [Middleware(Handshakes, paths=WEBSOCKETS)]
    if settings.trusted_proxies or settings.peers.name is not None:
        around.append(Middleware(ForwardedHeaders, trusted=settings.trusted_proxies, peers=peers))
    if settings.console.enabled:
        around.append(Middleware(SessionCookies, sessions=sessions))
    around.append(Middleware(Attempts, metrics=metrics))
    if settings.allowed_origins:
        around.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=["GET", "HEAD", "POST", "PUT", "DELETE"],
                allow_headers=["*"],
                expose_headers=_FOR_PAGES,
            )
        )
    return around
