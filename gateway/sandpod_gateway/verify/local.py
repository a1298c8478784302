"""Tries local sandboxes: the backend that the settings say, on this machine."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.verify import probing
from sandpod_gateway.verify.model import Evidence, Facts, Untried
from sandpod_gateway.verify.places import ELSEWHERE, by_group, wanted
from sandpod_gateway.verify.programs import Programs

_OWN_FILES: Final = [str(Path.home() / name) for name in (".ssh", ".kube", ".aws", ".bashrc", ".config")]


async def collect(settings: LocalSettings) -> Evidence:
    """Return what is seen in two local sandboxes. Raises SandpodError: there can be none."""
    backend = LocalBackend(settings.model_copy(update={"warm": 0}))
    found: dict[str, Facts | Untried] = {}
    await backend.start()
    try:
        async with probing.opened(backend) as (_, inside), probing.opened(backend) as (record, other):
            found |= await probing.look(inside)
            found["host"] = await host(inside)
            found["apart"] = await apart(inside, other)
            found["network"] = await network(inside)
            found |= await probing.strain(backend, inside, record.name, limits(settings), found["identity"])
    finally:
        await backend.close()
    return found


def limits(settings: LocalSettings) -> probing.Bounds:
    """Return what the settings let a sandbox take."""
    folders = {"/workspace": settings.workspace_bytes, "/tmp": settings.tmp_bytes}  # noqa: S108 - paths inside
    return probing.Bounds(
        memory=settings.memory_bytes,
        processes=settings.processes,
        open_files=settings.open_files,
        folders=folders,
    )


async def host(inside: Programs) -> Facts | Untried:
    """Return which things of this machine are seen inside: a file, a variable, this process."""
    name = "SANDPOD_VERIFY_SECRET"
    with tempfile.NamedTemporaryFile(prefix="sandpod-verify-") as file, _variable(name, "not-for-sandboxes"):
        return await inside.facts("host", {"paths": [file.name, *_OWN_FILES], "variable": name, "pid": os.getpid()})


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


async def network(inside: Programs) -> Facts | Untried:
    """Return what comes of reaching a server on this machine and addresses elsewhere."""
    with contextlib.closing(socket.create_server(("0.0.0.0", 0))) as server:
        port = server.getsockname()[1]
        groups = {**ELSEWHERE, "host": {"tcp": [f"{address}:{port}" for address in ("127.0.0.1", _own_address())]}}
        groups["icmp"] = {"ping": ["1.1.1.1", _own_address()]}
        seen = await inside.facts("network", wanted(groups))
    return seen if isinstance(seen, Untried) else by_group(groups, {"from code": seen})


def _own_address() -> str:
    with contextlib.closing(socket.socket(type=socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "192.0.2.1"
        return str(probe.getsockname()[0])


async def apart(inside: Programs, other: Programs) -> Facts | Untried:
    """Return which marks of one sandbox another one sees."""
    made = await other.facts("marks", {"make": True})
    if isinstance(made, Untried):
        return made
    return await inside.facts("marks", {"make": False})
