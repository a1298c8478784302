"""Closing a sandbox by force while a program runs in it, whether the backend ends its stream before or never."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.settings import Settings
from sandpod_runner.protocol.frames import Decoder, encode
from support.gateway.kube_objects import body
from support.gateway.peers import until
from support.servers.kube_server import KubeServer, serve


async def runner(socket: web.WebSocketResponse) -> None:
    """A runner whose programs never end; its pod is there until after the Sandbox is deleted."""
    await socket.send_bytes(b"\1" + encode({"t": "hello", "version": 1, "languages": {"python": "3.11"}}))
    decoder = Decoder()
    async for message in socket:
        for frame in decoder.feed(message.data[1:]):
            if frame.kind == "run":
                await socket.send_bytes(b"\1" + encode({"t": "started", "run": frame.header["run"]}))


@asynccontextmanager
async def backend(kind: str, folder: Path) -> AsyncIterator[Backend]:
    if kind == "fake":
        yield FakeBackend()
        return
    kube = KubeServer()
    kube.behind = runner
    async with serve(kube, folder) as kubeconfig:
        kube.show("ADDED", body("w"))
        yield KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig))


@pytest.mark.parametrize("kind", ["fake", "kubernetes"])
async def test_run_in_a_sandbox_that_is_closed_by_force_is_cancelled_and_not_lost(kind: str, tmp_path: Path) -> None:
    code = "import time\nfor i in range(1000000):\n    time.sleep(0.01)"
    async with backend(kind, tmp_path) as made:
        gateway = Gateway(Settings(), made)
        async with gateway.running(), Client(gateway.mcp) as client:
            sandbox = (await client.call_tool("create_sandbox", {})).structured_content["sandbox"]
            run = asyncio.create_task(client.call_tool("run_python_code", {"code": code, "sandbox": sandbox}))
            await until(lambda: gateway._sandboxes.running(sandbox) == 1)
            await client.call_tool("close_sandbox", {"sandbox": sandbox, "force": True})
            answer = await run
    assert answer.structured_content["outcome"] == "cancelled"
