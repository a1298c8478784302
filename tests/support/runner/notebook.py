"""A context of a runner, for the tests of cells."""

from typing import Any, Final

from support.runner.harness import Client, Result

RUNNERS: Final = {"ipython": "runner", "plain": "plain_runner"}
"""What evaluates the cells of Python contexts, and the fixture that has a runner with it; see `runner/conftest.py`."""


class Notebook:
    """One context."""

    def __init__(self, client: Client, name: str, language: str = "python") -> None:
        self.client = client
        self.name = name
        self.language = language

    async def cell(self, code: str | bytes, **fields: Any) -> Result:
        return await self.client.run(code, self.language, context=self.name, **fields)

    async def text(self, code: str, **fields: Any) -> str | None:
        """Return the last value's text; the cell has to be a success."""
        result = await self.cell(code, **fields)
        assert (result.outcome, result.exit_code, result.err) == ("ok", 0, b""), result
        text = value(result).get("text/plain")
        return None if text is None else text.decode()

    async def start(self, code: str, **fields: Any) -> str:
        return await self.client.start(code, self.language, context=self.name, **fields)

    async def cancelled(self, code: str) -> Result:
        """Run a cell that prints `started`, and cancel it there."""
        name = await self.start(code)
        await self.client.until_output(name, b"started")
        await self.client.send({"t": "cancel", "run": name})
        return await self.client.finish(name)

    async def restart(self) -> None:
        await self.client.ask("restart", context=self.name)


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
