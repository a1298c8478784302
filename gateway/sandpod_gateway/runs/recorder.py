"""One run as the gateway sees it: what was asked for, what came of it so far, and the result made of both.

Called by `runs.py` and `background.py`. It does no I/O: the connection's reader calls the sink's methods, which keep
bounded amounts and never wait.
"""

import time
from dataclasses import dataclass, field
from typing import Final

from sandpod_gateway.api.run_results import RunResult
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.content import Picture
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import run_id
from sandpod_gateway.runs.ansi import Stripper
from sandpod_gateway.runs.capture import Capture, Captured
from sandpod_gateway.runs.hints import Place, about_rest, hint_for
from sandpod_gateway.runs.progress import OutputStream
from sandpod_gateway.runs.request import RunRequest
from sandpod_gateway.runs.result import MAX_ANSWER, Showing, answer_size

LEAST_OUTPUT: Final = 4 * 1024
"""Characters of output that a result has however large the rest of it is."""


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """A run's result, and the pictures that go beside it."""

    result: RunResult
    pictures: list[Picture] = field(default_factory=list)


@dataclass(slots=True)
class Running:
    """A run's output and what else it showed, while it goes on. It is the sink of the connection's reader.

    Attributes:
        theirs: It is the run of an earlier call with the same idempotency key, which is read and not followed.
        most: Characters of output that its result has; as many as are kept where it is None.
        cursor: Where the reading of such a run goes on.
        received: Up to which offset each stream has come, by the sandbox's word.
        taken: How many bytes of each stream came; offsets are not added up, since a sandbox makes them.
        note: What its caller is to be told whatever comes of it.
        place: Where it runs, for the hint in its result.
    """

    record: SandboxRecord
    request: RunRequest
    run: str
    cap: int
    stream: OutputStream | None = None
    most: int | None = None
    started: float = field(default_factory=time.perf_counter)
    theirs: bool = False
    cursor: int = 0
    received: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    taken: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    showing: Showing = field(default_factory=Showing)
    note: str | None = None
    place: Place = field(init=False)
    stdout: Capture = field(init=False)
    stderr: Capture = field(init=False)
    gaps: set[str] = field(default_factory=set)
    strippers: dict[str, Stripper] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stdout, self.stderr = Capture(self.cap), Capture(self.cap)
        self.place = Place(sandbox=self.record.name, template=self.record.template, network=self.record.network)
        if self.request.strip_ansi:
            self.strippers = {"stdout": Stripper(), "stderr": Stripper()}

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of output. After a lost stream it may begin before or behind what came so far."""
        have, end = self.received[stream], offset + len(data)
        if end <= have:
            return
        gap = offset - have
        self.taken[stream] += len(data[max(-gap, 0) :])
        if gap > 0:
            self.gaps.add(stream)
        data = data[max(-gap, 0) :] if gap <= 0 else f"\n[... {gap} bytes lost ...]\n".encode() + data
        self.received[stream] = end
        if stream in self.strippers:
            data = self.strippers[stream].feed(data)
        (self.stdout if stream == "stdout" else self.stderr).feed(data)
        if self.stream is not None:
            self.stream.feed(stream, data)

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take one form of something that the program showed; forms of one thing have the same index."""
        self.showing.display(mime, index, data)

    def result(self, mime: str, data: bytes) -> None:
        """Take one form of the last value."""
        self.showing.result(mime, data)

    def _incomplete(self, stream: str, written: int) -> bool:
        return stream in self.gaps or written > self.received[stream]

    def answer(self, ended: Ended) -> RunAnswer:
        """Return what the caller gets: cut to what clients take."""
        most, pictures = self.most or 2 * self.cap, list(self.showing.pictures)
        while True:
            result = self._result(ended, most)
            if most <= LEAST_OUTPUT or answer_size(result, pictures) <= MAX_ANSWER:
                return RunAnswer(result, pictures)
            most //= 2

    def _shared(self, most: int) -> tuple[Captured, Captured]:
        """Return both streams in so many characters; where they do not fit, each has half at least."""
        out, err = self.stdout.read(), self.stderr.read()
        if len(out.text) + len(err.text) <= most:
            return out, err
        for_err = min(len(err.text), max(most // 2, most - len(out.text)))
        return self.stdout.read(most - for_err), self.stderr.read(for_err)

    def _result(self, ended: Ended, most: int) -> RunResult:
        out, err = self._shared(most)
        dropped = self.showing.dropped + ended.displays_dropped
        hint = hint_for(ended.outcome, ended.detail, err.text, self.place, dropped)
        name = run_id(self.record.name, self.run)
        rest = about_rest(name, out.total + err.total) if out.truncated or err.truncated else None
        return RunResult(
            sandbox=self.record.name,
            run_id=name,
            outcome=ended.outcome,
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=out.text,
            stdout_bytes=max(self.received["stdout"], ended.stdout_bytes),
            stdout_truncated=out.truncated or self._incomplete("stdout", ended.stdout_bytes),
            stderr=err.text,
            stderr_bytes=max(self.received["stderr"], ended.stderr_bytes),
            stderr_truncated=err.truncated or self._incomplete("stderr", ended.stderr_bytes),
            result=self.showing.value or None,
            displays=self.showing.displays,
            displays_dropped=dropped,
            context=self.request.context,
            context_state=ended.context_state,
            artifacts=[entry.artifact() for entry in ended.artifacts],
            artifacts_omitted=ended.artifacts_more,
            duration_ms=round(ended.duration_ms, 3) or round((time.perf_counter() - self.started) * 1e3, 3),
            cpu_ms=round(ended.cpu_ms, 3),
            max_rss_bytes=ended.max_rss_bytes,
            progress_dropped_bytes=self.stream.dropped if self.stream is not None else 0,
            hint=" ".join(filter(None, (self.note, hint, rest))) or None,
        )
