"""MCP over standard input and output, with the bounds that requests over HTTP have.

The SDK's own transport reads lines of any length and drops those that it can't read without an answer, for which a
client then waits forever. So the lines are read and judged here, and only those that can be handled reach it.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, BinaryIO, Final, cast

import anyio
import anyio.to_thread
from fastmcp import FastMCP
from fastmcp.server.context import reset_transport, set_transport
from mcp.server.stdio import stdio_server

from sandpod_gateway.api import messages

_PIECE: Final = 64 * 1024  # bytes of a line that is too long, thrown away at a time


async def serve(mcp: FastMCP[Any]) -> None:
    """Serve until standard input ends."""
    token = set_transport("stdio")
    try:
        with _claimed() as (source, sink):
            output = _Output(sink)
            lines = cast("anyio.AsyncFile[str]", _lines(source, output))
            server = mcp._mcp_server  # noqa: SLF001 - FastMCP's own way to run it takes no streams
            async with (
                mcp._lifespan_manager(),  # noqa: SLF001 - as above
                stdio_server(stdin=lines, stdout=cast("anyio.AsyncFile[str]", output)) as (reading, writing),
            ):
                await server.run(reading, writing, server.create_initialization_options())
    finally:
        reset_transport(token)


@contextlib.contextmanager
def _claimed() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Give both streams under other numbers: what anything else prints goes to standard error, and it reads nothing."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        # They stay open: a thread may still wait for a line.
        with os.fdopen(source, "rb", closefd=False) as reading, os.fdopen(sink, "wb", closefd=False) as writing:
            yield reading, writing
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)


class _Output:
    """Whole lines to standard output, from more than one task."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._lock = anyio.Lock()

    async def write(self, text: str) -> None:
        """Write a line and flush it."""
        async with self._lock:
            await anyio.to_thread.run_sync(self._write, text.encode())

    async def flush(self) -> None:
        """Do nothing: each line is flushed when it is written."""

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self._sink.flush()


async def _lines(source: BinaryIO, output: _Output) -> AsyncIterator[str]:
    """Yield the messages of standard input that can be handled, and answer the others."""
    while line := await anyio.to_thread.run_sync(_line, source):
        if line.isspace():
            continue
        refusal = messages.refusal(line)
        if refusal is None:
            yield line.decode()
        elif refusal.is_answered:
            await output.write(refusal.body().decode() + "\n")


def _line(source: BinaryIO) -> bytes:
    """Read a line; of one that is too long, enough for that to be seen."""
    line = piece = source.readline(messages.MAX_BYTES + 1)
    while len(line) > messages.MAX_BYTES and piece and not piece.endswith(b"\n"):
        piece = source.readline(_PIECE)
    return line
