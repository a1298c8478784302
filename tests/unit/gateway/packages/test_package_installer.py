"""What a gateway remembers of installations."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode, Installation
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.installer import REMEMBERED, Installer
from sandpod_gateway.packages.settings import PackageSettings


class Sandboxes:
    """One sandbox, of whoever asks."""

    async def resolve(self, owner: str, _: str | None) -> Any:
        return SimpleNamespace(name=f"{owner}-sandbox", owner=owner)

    async def keep_alive(self, _: Any) -> None:
        """Do nothing."""


class Channel:
    """Installs nothing: at once, or, of the owner `slow`, when it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    def parse(self, packages: list[str]) -> list[str]:
        return packages

    async def install(self, record: Any, _: list[str]) -> tuple[list[Any], str | None]:
        if record.owner == "slow":
            await self.let_go.wait()
        return [], None


async def test_slow_installation_does_not_keep_all_later_ones_in_memory() -> None:
    sandboxes: Any = Sandboxes()
    channel: Any = Channel()
    installer = Installer(sandboxes, PackageSettings())
    installer._channels = {"python": channel}

    async def install(owner: str, name: str, wait: float) -> Installation:
        return await installer.install(owner, [name], language="python", sandbox=None, wait=wait)

    slow = await install("slow", "package", 0)
    quick = [await install("quick", f"package{number}", 60) for number in range(REMEMBERED + 1)]
    assert (slow.status, {each.status for each in quick}) == ("installing", {"success"})
    with pytest.raises(SandpodError) as caught:
        await installer.get("quick", quick[0].installation, wait=0)
    assert caught.value.code == ErrorCode.NOT_FOUND
    assert (await installer.get("quick", quick[-1].installation, wait=0)).status == "success"
    channel.let_go.set()
    assert (await installer.get("slow", slow.installation, wait=60)).status == "success"
