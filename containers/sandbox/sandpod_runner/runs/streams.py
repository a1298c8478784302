"""The streams of one run: what its program writes and shows, on the way to the run's delivery, and its input."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.display_reader import Shown
from sandpod_runner.output.stdio_pipes import PipeReader, Pipes
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.outcome import Stop
from sandpod_runner.runs.request import RunRequest

LAST_WORDS: Final = 4096  # bytes of standard error that are looked at


class Streams:
    """Nothing is read or written before they are connected."""

    def __init__(self, request: RunRequest, delivery: Delivery, stop: Callable[[Stop], None]) -> None:
        self._request = request
        self._delivery = delivery
        self._stop = stop
        self._pipes = Pipes()
        self._shown: Shown | None = None
        self.counts = {"stdout": 0, "stderr": 0}  # bytes that were passed on
        self.last_words = b""  # the end of standard error: what a runtime writes when it gives up

    @property
    def displays(self) -> tuple[int, int, int]:
        """How many forms of displays and results were passed on, how many were not, and how many pictures were kept."""
        shown = self._shown
        return (0, 0, 0) if shown is None else (shown.forms + shown.results, shown.dropped, shown.kept)

    def connect(self, pipes: Pipes, done: Callable[[Exit], None] | None = None) -> None:
        """Begin; the pipes are closed here. `done` is called when the program reports its end, if that is trusted."""
        self._pipes = pipes
        for name, reader in pipes.outputs.items():
            reader.take = partial(self._take, name)
        if pipes.shown is not None:
            self._shown = Shown(pipes.shown, self._post, done, results=self._request.context is not None)
        self.flow()
        if pipes.stdin is not None and not self._request.stdin:
            pipes.stdin.end()

    def flow(self) -> None:
        """Let output come, or leave it in the pipes, as its owner can take it."""
        self._delivery.pump()
        held = self._delivery.held
        for reader in self._pipes.readers:
            reader.pause() if held else reader.resume()

    def feed(self, data: bytes, offset: int | None, *, last: bool) -> None:
        """Take input for the program, after `offset` bytes of which some may have come already; None: it comes next."""
        stdin = self._pipes.stdin
        if stdin is None or not self._request.stdin:
            return
        if offset is not None:
            if offset > stdin.taken:
                self._stop(Stop("error", "A part of the program's input was lost on the way: it was ended."))
                return
            data = data[stdin.taken - offset :]
        if not stdin.feed(data):
            self._stop(Stop("error", "More input came than the program read: it was ended."))
        if last:
            stdin.end()

    def release(self) -> list[PipeReader]:
        """Read what is left, and return the pipes that somebody may still write to: they are the caller's."""
        for reader in self._pipes.readers:
            reader.drain()
        if self._pipes.shown is not None:
            self._pipes.shown.close()
        outputs, self._pipes.outputs = self._pipes.outputs, {}
        return [reader for reader in outputs.values() if reader.open]

    def close(self) -> None:
        """Read and write nothing more."""
        self._pipes.close()

    def _hold(self) -> None:
        if self._delivery.held:
            self.flow()

    def _post(self, fields: dict[str, Any], data: bytes) -> None:
        self._delivery.post(fields | {"run": self._request.run}, data)
        self._hold()

    def _take(self, name: str, data: bytes) -> bool:
        limit = self._request.output_limit
        room, offset = limit - sum(self.counts.values()), self.counts[name]
        self.counts[name] += min(len(data), room)
        if room > 0:
            self._delivery.put(name, offset, data[:room])
            self._hold()
        if name == "stderr":
            self.last_words = (self.last_words + data)[-LAST_WORDS:]
        if len(data) <= room:
            return True
        for reader in self._pipes.outputs.values():
            reader.close()
        self._stop(Stop("output_limit", f"It wrote more than {limit} bytes of output.", gentle=False))
        return False
