"""Several gateways of one installation, each with a backend of its own, which shows where a call was answered."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from typing import Any, Final

import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.http.mcp.peers import PeerSettings
from sandpod_gateway.settings import Settings, ShutdownSettings
from support.gateway.server import listening
from support.ports import free_port

ONE: Final = "127.0.0.2"
OTHER: Final = "127.0.0.3"
_NAME: Final = "gateways.test"


class Member:
    """One of the gateways."""

    def __init__(self, gateway: Gateway, backend: FakeBackend, address: str, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self.backend = backend
        self.address = address
        self.end = stack.aclose

    def running(self) -> int:
        return sum(len(cell.runner.runs) for cell in self.backend.launcher.cells)

    def passed_on(self, result: str = "answered") -> float:
        name, labels = "sandpod_passed_on_requests_total", {"result": result}
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


class Team:
    """Gateways of one installation, by their addresses, and the name that leads to them."""

    def __init__(self, stack: AsyncExitStack, settings: dict[str, Any]) -> None:
        self._stack = stack
        self._settings = settings
        self.port = free_port(ONE, OTHER)
        self.ready: list[str] = []
        self.broken = False  # whether the name can't be looked up

    async def start(self, host: str, **more: Any) -> Member:
        peers = PeerSettings(name=_NAME, address=ip_address(host))
        own: dict[str, Any] = {"port": self.port, "peers": peers, "shutdown": ShutdownSettings(calls=1)}
        own["allowed_hosts"] = [ONE, OTHER]
        settings, backend = Settings(**own, **self._settings, **more), FakeBackend()
        gateway, stack = Gateway(settings, backend), AsyncExitStack()
        address = await stack.enter_async_context(listening(gateway, settings, host=host, port=self.port))
        self._stack.push_async_exit(stack)
        if settings.tls.cert is not None:
            address = address.replace("http:", "https:")
        self.ready.append(host)
        return Member(gateway, backend, address, stack)

    async def both(self) -> tuple[Member, Member]:
        one, other = await self.start(ONE), await self.start(OTHER)
        await one.gateway._peers.refresh()
        return one, other


@asynccontextmanager
async def team(patch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Team]:
    look_up = socket.getaddrinfo
    async with AsyncExitStack() as stack:
        made = Team(stack, settings)

        def found(host: Any, port: Any, *rest: Any, **more: Any) -> list[Any]:
            if host != _NAME:
                return look_up(host, port, *rest, **more)
            if made.broken:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            if not made.ready:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [each for ready in made.ready for each in look_up(ready, port, *rest, **more)]

        patch.setattr(socket, "getaddrinfo", found)
        yield made
