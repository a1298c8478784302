"""A context of a runner, for the tests of what evaluates its cells: IPython, or plain Python where that is missing."""

from typing import Any, Final

from support.runner.harness import Client, Result

RUNNERS: Final = {"ipython": "runner", "plain": "plain_runner"}
"""What evaluates the cells of contexts, and the fixture that has a runner with it; see `runner/conftest.py`."""


class Notebook:
    """One context."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    async def cell(self, code: str | bytes, **fields: Any) -> Result:
        return await self.client.run(code, context=self.name, **fields)

    async def start(self, code: str, **fields: Any) -> str:
        return await self.client.start(code, context=self.name, **fields)

    async def restart(self) -> None:
        await self.client.send({"t": "restart", "id": 7, "context": self.name})
        reply = await self.client.next()
        assert reply is not None
        assert (reply.kind, reply.header["id"]) == ("reply", 7), reply


def value(result: Result) -> dict[str, bytes]:
    """Return the forms of the last value, which came before the end."""
    assert result.frames[-1].kind == "end"
    return {frame.header["mime"]: frame.payload for frame in result.frames if frame.kind == "result"}


def shown(result: Result) -> list[dict[str, bytes]]:
    """Return what was displayed, in order, each in its forms by type."""
    found: list[dict[str, bytes]] = []
    for frame in result.frames:
        if frame.kind == "display":
            if frame.header["index"] == len(found):
                found.append({})
            assert frame.header["index"] == len(found) - 1
            assert frame.header["mime"] not in found[-1]
            found[-1][frame.header["mime"]] = frame.payload
    return found
