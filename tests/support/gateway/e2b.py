"""E2B's API of a gateway over a fake backend, as its clients see it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.e2b.envd.connect import envelope
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.fake_gateway import keys_file
from support.gateway.server import listening

STREAMS: Final = [
    *(f"/process.Process/{name}" for name in ("Start", "Connect", "StreamInput")),
    "/filesystem.Filesystem/WatchDir",
]


class Place:
    """A gateway, and clients with the keys of its users."""

    def __init__(self, address: str, keys: dict[str, str], gateway: Gateway) -> None:
        self.address = address
        self.keys = keys
        self.gateway = gateway

    async def send(self, user: str | None, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"x-api-key": self.keys[user]} if user else {}
        headers |= options.pop("headers", {})
        async with httpx2.AsyncClient(base_url=f"{self.address}/e2b", timeout=60) as http:
            return await http.request(method, path, headers=headers, **options)

    async def inside(self, sandbox: str, token: str, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request for what is in a sandbox, by default with a body that its route takes."""
        headers = {"e2b-sandbox-id": sandbox, "e2b-traffic-access-token": token, **options.pop("headers", {})}
        if path in STREAMS:
            headers.setdefault("content-type", "application/connect+json")
            options.setdefault("content", envelope({"path": ".", "process": {"cmd": "ls"}, "start": {}}))
        elif method == "POST" and path.partition("?")[0] == "/files":
            headers.setdefault("content-type", "application/octet-stream")
            options.setdefault("content", b"x")
        elif method == "POST" and not options:
            options["json"] = dict.fromkeys(("path", "source", "destination"), "a")
            options["json"] |= {"code": "print(1)", "process": {"pid": 1}}
        return await self.send(None, method, path, headers=headers, **options)

    @asynccontextmanager
    async def streamed(
        self, sandbox: str, token: str, path: str, message: dict[str, Any]
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Call a method, and give the messages of its answer."""
        headers = {"e2b-sandbox-id": sandbox, "x-access-token": token, "content-type": "application/connect+json"}
        async with (
            httpx2.AsyncClient(base_url=f"{self.address}/e2b", timeout=60) as http,
            http.stream("POST", path, headers=headers, content=envelope(message)) as answer,
        ):
            yield messages_of(answer)

    async def made(self, user: str = "ann", **body: Any) -> tuple[str, str]:
        """Return a new sandbox of a user, and the token for it."""
        answer = await self.send(user, "POST", "/v2/sandboxes", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["sandboxID"], answer.json()["envdAccessToken"]


@asynccontextmanager
async def place(folder: Path, backend: FakeBackend | None = None, **settings: Any) -> AsyncIterator[Place]:
    path, keys = keys_file(folder, "ann", "eve")
    made = Settings(auth=AuthSettings(keys_file=path), **settings)
    gateway = Gateway(made, backend or FakeBackend())
    async with listening(gateway, made) as address:
        yield Place(address, dict(zip(("ann", "eve"), keys, strict=True)), gateway)


async def messages_of(answer: httpx2.Response) -> AsyncIterator[Any]:
    """Yield what a stream says, and how it ends."""
    buffer = b""
    async for data in answer.aiter_bytes():
        buffer += data
        while len(buffer) >= 5 and len(buffer) >= (size := 5 + int.from_bytes(buffer[1:5])):
            yield json.loads(buffer[5:size])
            buffer = buffer[size:]
