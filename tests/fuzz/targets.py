"""What is fuzzed: each target takes bytes of anybody's making, and raises AssertionError or a bug's own error.

Refusals are right answers. What must change nothing, such as how bytes are cut into pieces, is tried by comparing.
"""

import asyncio
import contextlib
import json
import posixpath
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

from fuzz.served import Served
from fuzz.values import Source
from sandpod_gateway.e2b import paths as e2b_paths
from sandpod_gateway.e2b.envd import connect as e2b_connect
from sandpod_gateway.e2b.envd.files import Multipart, Piece
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files import paths
from sandpod_gateway.rest.terminal_client import TerminalClient
from sandpod_gateway.runner.demux import BrokenProtocolError, Inbox, read_frames
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.flow import FlowError, Receiving, Sending
from sandpod_runner.protocol.frames import Decoder, Frame, FrameError, encode
from sandpod_runner.protocol.paths import spell, unspell
from sandpod_runner.runs.request import parse_run

SIZES: Final = (1, 7, 4096)
_REFUSALS: Final = (SandpodError, FrameError)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Yield bytes in pieces of a size."""
    return (data[start : start + size] for start in range(0, len(data), size))


def _taken(feed: Callable[[bytes], Iterable[Any]], data: bytes, size: int) -> tuple[list[Any], str]:
    """Return what a decoder makes of bytes, and how it refuses the rest."""
    found: list[Any] = []
    try:
        for piece in pieces(data, size):
            found.extend(feed(piece))
    except _REFUSALS as error:
        return found, type(error).__name__
    return found, ""


def frames(data: bytes) -> None:
    """Frames as gateway and runner read them: no matter how they are cut, and what is read can be written again."""
    found = [_taken(Decoder().feed, data, size) for size in SIZES]
    # Compared as text: a number that is none, such as NaN, is not even equal to itself.
    assert repr(found[0]) == repr(found[1]) == repr(found[2]), "frames depend on how their bytes are cut"
    for frame in found[0][0]:
        assert isinstance(frame.kind, str)
        with contextlib.suppress(FrameError):
            assert repr(list(Decoder().feed(encode(frame.header, frame.payload)))) == repr([frame])
        _as_run(frame)


def _as_run(frame: Frame) -> None:
    with contextlib.suppress(Refusal):
        asked = parse_run(frame.header, frame.payload, ("python", "javascript", "shell"), 3600.0)
        assert asked.run
        assert 0 < asked.timeout <= 3600
        assert not any("\0" in text for text in (*asked.args, *asked.env, *asked.env.values()))


class _Sink:
    """Takes what comes of a run, as far as its offsets make sense."""

    def output(self, stream: str, offset: int, data: bytes) -> None:
        assert stream in {"stdout", "stderr"}
        assert isinstance(data, bytes)
        assert offset >= 0

    def display(self, mime: str, index: int, data: bytes) -> None:
        assert isinstance(mime, str)
        assert index >= 0
        assert isinstance(data, bytes)

    def result(self, mime: str, data: bytes) -> None:
        assert isinstance(mime, str)
        assert isinstance(data, bytes)


class _Bytes:
    """A stream of a runner's that says these bytes."""

    def __init__(self, data: bytes) -> None:
        self._pieces = pieces(data, SIZES[-1])

    async def read(self) -> bytes:
        return next(self._pieces, b"")

    async def write(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


def inbox(data: bytes) -> None:
    """All that a hostile runner sends, as the gateway takes it."""

    async def read() -> None:
        box = Inbox()
        run = box.expect_run("r", _Sink(), acks=True)
        reply = box.expect_reply(1)
        with contextlib.suppress(BrokenProtocolError):
            await read_frames(_Bytes(data), box)
        box.take_acks()
        assert len(box.runs) <= 1
        for future in (run.accepted, run.ended, reply, box.hello):
            if future.done() and not future.cancelled():
                future.exception()

    Served.of().run(read())


def flow(data: bytes) -> None:
    """One direction of a channel between two ends that are told anything: what comes is what was sent."""
    source = Source(data)
    sending, receiving, sent, came = Sending(), Receiving(), bytearray(), bytearray()
    try:
        while source.more:
            match source.below(6):
                case 0:
                    piece = source.bytes(min(source.below(4096), sending.room))
                    if not sending.finished:
                        sending.put(piece)
                        sent += piece
                case 1:
                    if (ready := sending.next()) is not None:
                        offset, piece, last = ready
                        came += receiving.take(offset, piece, last=last)
                case 2:
                    receiving.credit(source.below(len(came) + 2))
                case 3:
                    sending.acknowledge(source.below(len(sent) + 2))
                case 4:
                    sending.resume(source.below(len(sent) + 2))
                case _:
                    sending.finish()
    except FlowError:
        pass
    assert sent.startswith(came), "what came is not what was sent"


def path(data: bytes) -> None:
    """Paths of callers: none leads out of the workspace, and what is shown names the same again."""
    text = data.decode("utf-8", "surrogateescape")
    # Names of a listing have no NUL, and what is spelled is plain text.
    if "\0" not in text:
        spelled = spell(text)
        spelled.encode()
        assert unspell(spelled) == text
    plain = data.decode("utf-8", "replace")
    with contextlib.suppress(SandpodError):
        paths.check_path(plain)
        shown = paths.shown_path(plain)
        assert paths.shown_path(shown) == shown
        inside = paths.inside_workspace(plain)
        meant = posixpath.normpath(posixpath.join("/workspace", unspell(inside)))
        assert meant.startswith("/workspace/"), f"{inside!r} leads out of the workspace"
    with contextlib.suppress(SandpodError):
        paths.check_filename(plain)
        assert "/" not in plain
        assert plain not in {".", ".."}
    with contextlib.suppress(SandpodError):
        within = e2b_paths.inside(plain)
        assert posixpath.normpath(posixpath.join("/w", within)).startswith("/w"), f"{within!r} leads out"
        e2b_paths.outside(within)
    e2b_paths.folder(plain)


def envelopes(data: bytes) -> None:
    """Connect's envelopes, however they are cut."""
    found = [_taken(e2b_connect.Decoder().feed, data, size) for size in SIZES]
    assert found[0] == found[1] == found[2], "envelopes depend on how their bytes are cut"


def multipart(data: bytes) -> None:
    """Bodies of forms: the files and their contents do not depend on how the bytes are cut, and nothing is kept."""
    size, _, body = data.partition(b"\n")
    boundary = size[:70] or b"B"

    async def read(step: int) -> tuple[list[bytes], str]:
        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces(body, step):
                yield piece

        files: list[bytes] = []
        try:
            async for piece in Multipart(boundary).pieces(chunks()):
                assert isinstance(piece, Piece)
                if piece.kind == "head":
                    files.append(piece.data + b"\0")
                elif piece.kind == "content":
                    files[-1] += piece.data
        except SandpodError as error:
            return [], error.code
        return files, ""

    found = [Served.of().run(read(step)) for step in SIZES]
    assert found[0] == found[1] == found[2], "files depend on how their bytes are cut"


def arguments(data: bytes) -> None:
    """Arguments of all tools: each call is answered, and a refusal has one of the codes that are not a bug's."""
    source, served = Source(data), Served.of()
    tool = source.choice(served.tools)
    given = {source.choice(tool.arguments): source.value() for _ in range(source.below(6))}
    answer = served.run(served.call(tool.name, given))
    assert answer.get("error") != "backend_error", (tool.name, given, answer)
    assert served.bugs() == [], (tool.name, given)


def http(data: bytes) -> None:
    """Bytes to the gateway's port: it answers or hangs up, serves the next one as ever, and meets no bug of its own."""
    served = Served.of()
    said = served.run(served.send(data))
    assert not said.startswith(b"HTTP/1.1 500"), said[:500]
    assert served.bugs() == [], data[:500]
    assert served.run(served.send(served.HEALTH)).startswith(b"HTTP/1.1 200"), "it does not serve any more"


class _Terminal:
    """A terminal that takes anything and shows nothing."""

    name = "t"

    class channel:  # noqa: N801 - as it is named there
        received, ended = 0, False

    class output:  # noqa: N801
        sent = 0

    def __init__(self) -> None:
        self.typed = 0

    async def read(self) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    async def write(self, data: bytes) -> None:
        self.typed += len(data)

    def resize(self, columns: int, rows: int) -> None:
        assert 1 <= columns <= 1000
        assert 1 <= rows <= 1000

    def got(self, upto: int) -> None:
        assert 0 <= upto <= 2**62


class _Socket:
    """A WebSocket over which a client says what the bytes say."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def receive(self) -> dict[str, Any]:
        if not self._source.more:
            return {"type": "websocket.disconnect", "code": 1000 + self._source.below(20)}
        text = self._source.below(2)
        data = self._source.bytes(self._source.below(300))
        return {"type": "websocket.receive", **({"text": data.decode("utf-8", "replace")} if text else {"bytes": data})}

    async def send_text(self, text: str) -> None:
        json.loads(text)

    async def send_bytes(self, data: bytes) -> None:
        pass


def websocket(data: bytes) -> None:
    """What the client of a terminal says over its WebSocket."""

    async def serve() -> None:
        socket = _Socket(Source(data))
        first: asyncio.Future[Any] = asyncio.ensure_future(socket.receive())
        client = TerminalClient(socket, _Terminal(), first)  # type: ignore[arg-type]
        with contextlib.suppress(SandpodError):
            await client.serve(lambda: asyncio.sleep(60))

    Served.of().run(serve())


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    each.__name__: each for each in (frames, inbox, flow, path, envelopes, multipart, arguments, http, websocket)
}
"""All of them, by name."""
