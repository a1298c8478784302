"""The program that installs wheels in a sandbox, in memory: it takes orders, and has what they name."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

_PART: Final = 256 * 1024
_TARGET: Final = {"markers": {}, "abi": "cp311", "platform": "linux-x86_64", "libc": ["glibc", "2.36"]}


class FakeInstaller:
    """The programs of one sandbox.

    Attributes:
        packages: Versions of what is installed, by name.
        turn: Held by the program whose turn it is.
        orders: Names of the packages of each order.
        says: What a program writes last in place of the result, if anything.
    """

    def __init__(self) -> None:
        self.packages: dict[str, str] = {}
        self.turn = asyncio.Lock()
        self.orders: list[list[str]] = []
        self.says: bytes | None = None

    async def run(self, source: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]) -> int:
        """Go through one program, and return its exit code."""
        await source.readexactly(int(await source.readline()))
        if not json.loads(await source.readline()):
            await write(self._report())
            return 0
        async with self.turn:
            await write(self._report())
            order = json.loads(await source.readline())
            if order:
                await self._install(order, source, write)
                await write(self._report())
        result = (await source.readline()).strip()
        await write(b"\n%b\n" % (result if self.says is None else self.says))
        return 0

    def _report(self) -> bytes:
        installed = {name: {"version": version, "source": "installed"} for name, version in self.packages.items()}
        report: dict[str, Any] = {"failure": None, "environment": _TARGET, "installed": installed}
        return b"\n%b\n" % base64.b64encode(json.dumps(report).encode())

    async def _install(
        self, order: dict[str, Any], source: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self.orders.append([package["name"] for package in order["packages"]])
        left = sum(package["size"] for package in order["packages"])
        while left:
            piece = await source.readexactly(min(_PART, left))
            left -= len(piece)
            await write(b"." * (len(piece) // _PART))
        for package in order["packages"]:
            self.packages[package["name"]] = "1.0"
