"""A stream of bytes to a program in a pod: Kubernetes' exec protocol over a WebSocket.

It is `v5.channel.k8s.io`, and `v4` with older API servers: the first byte of each message is its channel. Written here
because the clients' own lose exit codes, break on characters that are split between frames, or read ahead without
bounds.

The other end is untrusted: messages, the unread rest and what is kept of standard error all have limits. Reading stops
while the reader is slow, so that the API server, the kubelet and at last the program wait too.
"""

import asyncio
import contextlib
import json
import logging
from collections import deque
from http import HTTPStatus
from socket import SHUT_RDWR
from typing import Any, Final, NamedTuple

import aiohttp

from sandpod_gateway.time_slices import Turn
from sandpod_kube.errors import UnreachableError, refusal

logger = logging.getLogger(__name__)

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS = range(4)

OPEN_TIMEOUT: Final = 10.0
"""Seconds to open a stream; it takes about 0.1."""
HEARTBEAT: Final = 20.0
"""Seconds between pings: proxies drop connections that are silent for a minute."""
UNANSWERED: Final = 2
"""Pings in a row without any sign of life after which the connection is dead."""
CLOSE_TIMEOUT: Final = 2.0
"""Seconds that the API server gets to answer a close."""
MAX_MESSAGE: Final = 512 * 1024
"""Largest message taken, bytes; the kubelet sends 32 KiB at most."""
BUFFER: Final = 512 * 1024
"""Unread bytes at which reading from the network stops. With one message more a read gives 1 MiB at most."""
WRITE_PIECE: Final = 256 * 1024
"""Largest message sent, bytes."""
STDERR_TAIL: Final = 4096
"""Bytes kept of what the program wrote to standard error, for the log."""


class ExecEnd(NamedTuple):
    """How the program ended. `exit_code` is None where it never started or its end was not reported."""

    exit_code: int | None
    message: str


async def open_exec(
    http: aiohttp.ClientSession, target: dict[str, Any], *, heartbeat: float = HEARTBEAT
) -> "ExecStream":
    """Open a stream that sends a ping every `heartbeat` seconds. Each is a connection: `http` must not limit them.

    The target is where and how to connect, as arguments of aiohttp's `ws_connect`: made anew for each stream, since
    tokens are renewed.

    Raises:
        RefusedError: The API server refused, as 404 where there is no such pod.
        UnreachableError: It gave no answer, or one that is no exec stream.
    """
    try:
        async with asyncio.timeout(OPEN_TIMEOUT):
            socket = await http.ws_connect(
                **target,
                protocols=(V5, V4),
                autoping=False,  # pings and pongs are signs of life that the stream counts itself
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT),
                max_msg_size=MAX_MESSAGE,
                compress=0,
            )
    except aiohttp.WSServerHandshakeError as error:
        if error.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(error.status, "", "") from error
        raise UnreachableError(f"what answers with status {error.status} is no exec stream") from error
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise UnreachableError(f"no exec stream could be opened: {type(error).__name__}") from error
    if socket.protocol is None:
        await socket.close()
        raise UnreachableError("the server does not speak Kubernetes' exec protocol")
    return ExecStream(socket, heartbeat)


class ExecStream:
    """One open exec; implements `base.ByteStream`. Make it with `open_exec`. For one reader and any writers."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool], heartbeat: float) -> None:
        self._socket = socket
        self._connection = socket.get_extra_info("socket")
        self._heartbeat = heartbeat
        self._unread = bytearray()
        self._readable = asyncio.Event()
        self._room = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._unsent: deque[bytes] = deque()
        self._due = asyncio.Event()
        self._sent = asyncio.Event()
        self._unsendable = False
        self._stderr = bytearray()
        self._status: bytes | None = None
        self._listening = False
        self._heard = 0  # messages
        self._closed = False
        self._ended = False
        self._tasks = [asyncio.create_task(task()) for task in (self._pump, self._send_on, self._keep_alive)]

    @property
    def ended(self) -> bool:
        """Whether the other side is gone, or this side closed."""
        return self._closed or self._ended

    @property
    def end(self) -> ExecEnd | None:
        """How the program ended; None while it runs, and where the connection was lost before its end was known."""
        return None if self._status is None else parse_status(self._status)

    @property
    def stderr(self) -> str:
        """The last of what the program wrote to standard error, printable in a log."""
        return printable(self._stderr.decode("utf-8", "replace"))

    async def read(self) -> bytes:
        """Return the next bytes of the program's standard output; empty when there will be none."""
        while not self._unread:
            if self.ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = bytes(self._unread)
        self._unread.clear()
        self._room.set()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes to the program's standard input, all or none; waits until what was sent before is on its way.

        Raises:
            ConnectionError: The stream is closed, by either side.
        """
        async with self._write_lock:
            while self._unsent and not (self.ended or self._unsendable):
                self._sent.clear()
                await self._sent.wait()
            if self.ended or self._unsendable:
                raise ConnectionResetError("the stream is closed")
            view = memoryview(data)
            pieces = (view[start : start + WRITE_PIECE] for start in range(0, len(view), WRITE_PIECE))
            self._unsent.extend(bytes((STDIN,)) + piece for piece in pieces)
            self._due.set()

    async def close(self) -> None:
        """Close both directions, also while `read` or `write` wait. May be called more than once."""
        self._closed = True
        self._unread.clear()
        self._wake()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The program sees the end of its input from the closed connection, under v4 and v5 alike.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT):  # the socket's own limit starts anew with each message
                await self._socket.close()
        # What is left is TLS's own farewell, which would keep the connection for as long as the server likes.
        with contextlib.suppress(OSError):
            self._connection.shutdown(SHUT_RDWR)

    async def _send_on(self) -> None:
        """Send what is unsent, whatever becomes of those who wrote it, until the stream ends."""
        try:
            while True:
                await self._due.wait()
                while self._unsent:
                    await self._socket.send_bytes(self._unsent[0])
                    self._unsent.popleft()
                self._due.clear()
                self._sent.set()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            logger.debug("an exec stream broke while writing: %s", error)
        finally:
            self._unsendable = True  # a frame may be cut; what has come is read all the same
            self._sent.set()

    def _wake(self) -> None:
        """Let whoever waits see that the stream is over: a reader, a reader's pump, a writer."""
        self._readable.set()
        self._room.set()
        self._sent.set()

    async def _pump(self) -> None:
        turn = Turn()
        try:
            while await self._next():
                if turn.over:
                    await turn.renew()
                while len(self._unread) >= BUFFER and not self._closed:
                    self._room.clear()
                    await self._room.wait()
        except (aiohttp.ClientError, OSError) as error:
            logger.debug("an exec stream broke: %s", error)
        finally:
            self._ended = True
            self._wake()
            self._log_end()

    async def _next(self) -> bool:
        """Take one message. Return whether more can follow."""
        self._listening = True
        message = await self._socket.receive()
        self._listening = False
        self._heard += 1
        if message.type is aiohttp.WSMsgType.BINARY:
            self._take(message.data)
            return self._status is None
        if message.type is aiohttp.WSMsgType.PING:
            await self._socket.pong(message.data)
            return True
        return message.type is aiohttp.WSMsgType.PONG

    def _take(self, data: bytes) -> None:
        channel = data[0] if data else None
        if channel == STDOUT and len(data) > 1:
            self._unread += memoryview(data)[1:]
            self._readable.set()
        elif channel == STDERR:
            self._stderr += data[1:]
            del self._stderr[:-STDERR_TAIL]
        elif channel == STATUS:
            self._status = data[1:]

    async def _keep_alive(self) -> None:
        """Ping until the stream ends; end it when two pings in a row have no answer although we listen.

        Pings are counted, not seconds: an event loop that was held up has answers it has not looked at yet.
        """
        silent, heard = 0, 0
        while not self.ended:
            await asyncio.sleep(self._heartbeat)
            silent = silent + 1 if self._listening and self._heard == heard else 0
            heard = self._heard
            if silent > UNANSWERED:
                logger.info("an exec stream is dead: %d pings had no answer", UNANSWERED)
                self._tasks[0].cancel()
                return
            # A write that waits for the other side holds the connection: then the ping waits, but not for ever.
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(self._heartbeat):
                    await self._socket.ping()

    def _log_end(self) -> None:
        """Say how it ended, unless this side closed it. No warning: a sandbox that is deleted ends so, too."""
        how = self.end
        if how is None and not self._closed:
            logger.info("an exec stream was lost; standard error: %s", self.stderr or "empty")
        elif how is not None and how.exit_code != 0 and not self._closed:
            message = printable(how.message)
            logger.info("an exec ended with code %s: %s; standard error: %s", how.exit_code, message, self.stderr)


def parse_status(raw: bytes) -> ExecEnd:
    """Return what the status channel says of the program's end. Success is said in words, never assumed."""
    try:
        status = json.loads(raw)
        if status["status"] == "Success":
            return ExecEnd(0, "")
        causes = (status.get("details") or {}).get("causes") or []
        codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
        return ExecEnd(int(codes[0]) if codes else None, str(status.get("message", ""))[:STDERR_TAIL])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ExecEnd(None, "its status makes no sense")


def printable(text: str) -> str:
    """Return the text on one line that no terminal takes for orders."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
