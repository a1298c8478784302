"""A terminal in a sandbox over a WebSocket, which comes back after a broken connection with nothing lost either way."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from sandpod.api import PREFIX, Api, pause
from sandpod.errors import SandboxLostError, SandpodError, refused, unreachable

WINDOW: Final = 256 * 1024  # bytes of input that may be on their way
_PIECE: Final = 32 * 1024
_GIVE_UP: Final = 60.0  # seconds without a connection, after which the sandbox has hung up
_GONE: Final = {"session_not_found", "sandbox_lost"}  # codes of a sandbox that has ended, however its end is noticed
_GATEWAY_ERRORS: Final = range(500, 600)  # of a proxy whose server starts anew

Show = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a terminal's program ended; `outcome` is that of a run."""

    exit_code: int | None
    signal: str | None
    outcome: str
    detail: str | None = None  # what ended it, in a sentence, where it was not the program


class Terminal:
    """One terminal.

    Args:
        api: The server.
        sandbox: The sandbox's handle or name.
        show: Gets what is shown; the program waits until it is done.
        lost: Is called when the connection breaks.
        command: What to run in place of a shell.
        cwd: The folder that it begins in, relative to the workspace.
        size: Columns and rows.

    Attributes:
        is_connected: Whether there is a connection now.
    """

    def __init__(
        self,
        api: Api,
        sandbox: str,
        show: Show,
        lost: Callable[[], None],
        *,
        command: str = "",
        cwd: str = ".",
        size: tuple[int, int] = (80, 24),
    ) -> None:
        self.is_connected = False
        self._api = api
        self._path = f"/sandboxes/{quote(sandbox, safe='')}/terminal"
        self._show = show
        self._lost = lost
        self._begin = {"command": command, "cwd": cwd}
        self._size = size
        self._name: str | None = None
        self._received = 0  # bytes of output that were shown
        self._input = bytearray()  # from the byte `_base` on: what may have to be sent again, and what was not sent
        self._base = self._sent = self._taken = 0
        self._changed = asyncio.Event()  # there may be something to send
        self._told_size = size

    @property
    def is_full(self) -> bool:
        """Whether so much input waits that no more should be typed now."""
        return self._base + len(self._input) - self._taken >= 2 * WINDOW

    def type(self, data: bytes) -> None:
        """Type something."""
        self._input += data
        self._changed.set()

    def resize(self, columns: int, rows: int) -> None:
        """Say that the size is another one now."""
        self._size = columns, rows
        self._changed.set()

    async def run(self) -> Exit:
        """Stay connected until the program ends. Raises SandpodError: it was refused, or there is no way back."""
        await self._api.find()
        now, failures = asyncio.get_running_loop().time, 0
        lost = now()
        while True:
            cause: Exception
            try:
                async with self._connect() as socket:
                    await self._greet(socket)
                    try:
                        return await self._serve(socket)
                    except SandpodError as error:
                        if error.code not in _GONE:
                            raise
                        detail = f"The sandbox has ended, and the terminal with it ({error.message.rstrip('.')})."
                        return Exit(None, None, "sandbox_lost", detail)
                    finally:
                        self.is_connected, failures, lost = False, 0, now()
            except InvalidStatus as error:
                if error.response.status_code not in _GATEWAY_ERRORS:
                    raise _refusal(error, self._api.url) from error
                cause = error
            except (ConnectionClosed, InvalidHandshake, OSError) as error:
                cause = error
            failures += 1
            if failures == 1 and self._name is not None:
                self._lost()
            if now() - lost > _GIVE_UP or (self._name is None and failures > 1):
                raise unreachable(self._api.url, str(cause) or type(cause).__name__) from cause
            await asyncio.sleep(pause(failures))

    def _connect(self) -> connect:
        query: dict[str, Any] = {"cols": self._size[0], "rows": self._size[1]}
        query |= self._begin if self._name is None else {"terminal": self._name, "received": self._received}
        url = f"{self._api.url.replace('http', 'ws', 1)}{PREFIX}{self._path}?{urlencode(query)}"
        tls: dict[str, Any] = {"ssl": httpx2.create_ssl_context()} if url.startswith("wss:") else {}
        return connect(
            url, additional_headers=self._api.headers, compression=None, max_size=2 * WINDOW, max_queue=4, **tls
        )

    async def _greet(self, socket: ClientConnection) -> None:
        said = _parsed(await socket.recv())
        if "terminal" not in said:
            _end(said)
        self._told_size = self._size if self._name is None else (0, 0)
        self._name = str(said["terminal"])
        self._sent = self._taken = int(said["received"])
        if self._sent < self._base:
            raise SandboxLostError("sandbox_lost", "Some of what was typed is lost.", "Open a new terminal.")
        self._forget(self._sent)
        self.is_connected = True

    async def _serve(self, socket: ClientConnection) -> Exit:
        sending = asyncio.create_task(self._send(socket))
        try:
            while True:
                came = await socket.recv()
                if isinstance(came, bytes):
                    await self._show(came)
                    self._received += len(came)
                    await socket.send(json.dumps({"ack": self._received}))
                    continue
                said = _parsed(came)
                if "taken" in said:
                    self._taken = int(said["taken"])
                    self._forget(self._taken - WINDOW)  # what is on its way may be lost with a gateway
                    self._changed.set()
                elif (ended := _end(said)) is not None:
                    return ended
        except BaseException:  # such as that the user leaves: closed in order, the sandbox hangs up at once
            await socket.close()
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            self._changed.clear()
            if self._told_size != self._size:
                self._told_size = self._size
                await socket.send(json.dumps({"resize": self._size}))
            while room := min(_PIECE, self._taken + WINDOW - self._sent):
                begin = self._sent - self._base
                if not (data := bytes(self._input[begin : begin + room])):
                    break
                self._sent += len(data)
                await socket.send(data)
            await self._changed.wait()

    def _forget(self, end: int) -> None:
        """Drop input up to a byte."""
        if (count := end - self._base) > 0:
            del self._input[:count]
            self._base = end


def _parsed(message: str | bytes) -> dict[str, Any]:
    try:
        said = json.loads(message)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {}


def _end(said: dict[str, Any]) -> Exit | None:
    """Return how it ended, if that is what the server says. Raises SandpodError: it is a refusal."""
    if "error" in said:
        raise refused(said["error"])
    if "exit" not in said:
        return None
    return Exit(*(said["exit"].get(name) for name in ("exit_code", "signal", "outcome", "detail")))


def _refusal(error: InvalidStatus, url: str) -> SandpodError:
    status = error.response.status_code
    try:
        return refused(json.loads(error.response.body or b""), status)
    except (ValueError, KeyError, TypeError):
        return unreachable(url, f"it answers with HTTP status {status}")
