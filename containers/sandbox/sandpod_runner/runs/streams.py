"""The streams of one run: what its program writes and shows, on the way to the run's delivery, and its input."""

from collections.abc import Callable

from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.output.display_reader import Shown
from sandpod_runner.output.pipe_reader import PipeReader
from sandpod_runner.output.stdio_pipes import Input, Output, Pipes
from sandpod_runner.runs.delivery import Delivery
from sandpod_runner.runs.outcome import Stop
from sandpod_runner.runs.request import RunRequest


class Streams:
    """Nothing is read or written before they are connected."""

    def __init__(self, request: RunRequest, delivery: Delivery, stop: Callable[[Stop], None]) -> None:
        self._request = request
        self._delivery = delivery
        self._stop = stop
        self._output: Output | None = None
        self._shown: Shown | None = None
        self._sources: list[Output | PipeReader] = []
        self._input: Input | None = None
        delivery.hold = self.flow

    @property
    def counts(self) -> tuple[int, int]:
        """Bytes of standard output and standard error."""
        return (0, 0) if self._output is None else (self._output.counts["stdout"], self._output.counts["stderr"])

    @property
    def last_words(self) -> bytes:
        """The end of standard error."""
        return b"" if self._output is None else self._output.last_words

    @property
    def displays(self) -> tuple[int, int, int]:
        """How many forms of displays and results were passed on, how many were not, and how many pictures were kept."""
        shown = self._shown
        return (0, 0, 0) if shown is None else (shown.forms + shown.results, shown.dropped, shown.kept)

    def connect(self, pipes: Pipes, done: Callable[[Exit], None] | None = None) -> None:
        """Begin. `done` is called when the program says that it is over; None where its word is not taken."""
        request, post = self._request, self._delivery.post

        def display(mime: str, index: int, data: bytes) -> None:
            post({"t": "display", "run": request.run, "mime": mime, "index": index}, data)

        def result(mime: str, data: bytes) -> None:
            post({"t": "result", "run": request.run, "mime": mime}, data)

        self._output = Output(pipes.outputs, request.output_limit, self._delivery.put, self._too_much)
        self._sources.append(self._output)
        if pipes.shown is not None:
            self._shown = Shown(pipes.shown, display, result=result if request.context is not None else None, done=done)
            self._sources.append(self._shown.pipe)
        self.flow()
        self._input = pipes.stdin
        if self._input is not None and not request.stdin:
            self._input.end()

    def flow(self) -> None:
        """Let output come, or leave it in the pipes, as its owner can take it."""
        self._delivery.pump()
        held = self._delivery.held
        for source in self._sources:
            source.pause() if held else source.resume()

    def feed(self, data: bytes, offset: int | None, *, last: bool) -> None:
        """Take input for the program, after `offset` bytes of which some may have come already; None: it comes next."""
        if self._input is None or not self._request.stdin:
            return
        if offset is not None:
            if offset > self._input.taken:
                self._stop(Stop("error", "A part of the program's input was lost on the way: it was ended."))
                return
            data = data[self._input.taken - offset :]
        if not self._input.feed(data):
            self._stop(Stop("error", "More input came than the program read: it was ended."))
        if last:
            self._input.end()

    def release(self) -> list[PipeReader]:
        """Read what is left, and return the pipes that somebody may still write to: they are the caller's."""
        left = [] if self._output is None else self._output.release()
        if self._shown is not None:
            self._shown.pipe.drain()
            self._shown.pipe.close()
        return left

    def close(self) -> None:
        """Read and write nothing more."""
        for each in (*self._sources, *([] if self._input is None else [self._input])):
            each.close()

    def _too_much(self) -> None:
        limit = self._request.output_limit
        self._stop(Stop("output_limit", f"It wrote more than {limit} bytes of output.", gentle=False))
