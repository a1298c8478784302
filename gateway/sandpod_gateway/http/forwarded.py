"""What proxies and other gateways say of a request that they pass on: the client's address, and whether it used TLS."""

import ipaddress
from collections.abc import Iterable
from typing import Any, Final

from pydantic import IPvAnyNetwork
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from sandpod_gateway.http.mcp.peers import Peers, mark_passed_on

_CONNECTED: Final = "sandpod.connected"  # of a request's scope: the address that the connection came from


class ForwardedHeaders:
    """Takes client and scheme of a request from X-Forwarded-For and -Proto if a trusted proxy or a gateway sent it.

    Of several addresses the client's is the last one that is no trusted proxy's: whatever stands before it could have
    been sent by the client. The host is always the Host header's.
    """

    def __init__(self, app: ASGIApp, trusted: Iterable[IPvAnyNetwork], peers: Peers) -> None:
        self._app = app
        self._peers = peers
        checked: Any = self._checked  # uvicorn has types of its own for the same
        self._forwarded: Any = ProxyHeadersMiddleware(checked, [str(network) for network in trusted])
        self._passed_on: Any = ProxyHeadersMiddleware(checked, "*")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        client = scope[_CONNECTED] = scope.get("client")
        if client is not None and client[0] in self._peers.others:
            mark_passed_on(scope)
            await self._passed_on(scope, receive, send)
        else:
            await self._forwarded(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        connected = scope.pop(_CONNECTED)
        if scope.get("client") != connected:
            try:
                ipaddress.ip_address(scope["client"][0])
            except ValueError:  # such as `unknown`, or anything that a client made up
                scope["client"] = connected
        await self._app(scope, receive, send)
