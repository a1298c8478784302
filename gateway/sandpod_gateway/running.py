"""One run as the gateway sees it: what was asked for, what came of it so far, and the result made of both.

Called by `runs.py` and `background.py`. It does no I/O: the connection's reader calls the sink's methods, which keep
bounded amounts and never wait.
"""

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Final

from sandpod_api.run_results import Language, Rich, RunResult
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.hints import hint_for
from sandpod_gateway.output import Capture
from sandpod_gateway.run_ids import run_id
from sandpod_gateway.runner_messages import Ended
from sandpod_gateway.streaming import OutputStream
from sandpod_runner import protocol

MAX_RESULT: Final = 900 * 1024
"""Bytes of an answer as it is sent: clients refuse one event of 1 MiB."""
MAX_PICTURES: Final = 400 * 1024
"""Bytes of all pictures of one run before base64, which makes a third more of them."""
MAX_SHOWN: Final = 160 * 1024
"""Bytes of all else that a run shows, as they are sent: twice, and once more escaped."""
MAX_VALUE: Final = 96 * 1024
"""Bytes of all forms of a last value, but for pictures, as they are sent."""
MAX_TEXT: Final = 32 * 1024
"""Bytes of a last value as plain text; it is cut there, and other forms are left out whole."""
LEAST_CAP: Final = 4 * 1024
"""Bytes of a stream that a result keeps however large the rest of it is."""
PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
TEXTS: Final = frozenset(protocol.MIME_TYPES) - PICTURES


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What to run. Times in seconds; `cwd` is relative to the workspace.

    Attributes:
        context: Name of the context to run in, or None for a fresh process.
        key: Idempotency key, or None.
    """

    language: Language
    code: str
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."
    stdin: str | None = None
    timeout: float | None = None
    context: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that a run showed."""

    mime_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """A run's result, and the pictures that go beside it."""

    result: RunResult
    pictures: list[Picture] = field(default_factory=list)


@dataclass(slots=True)
class Running:
    """A run's output and what else it showed, while it goes on. It is the sink of the connection's reader."""

    record: SandboxRecord
    request: RunRequest
    run: str
    cap: int
    stream: OutputStream | None = None
    started: float = field(default_factory=time.perf_counter)
    received: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    pictures: list[Picture] = field(default_factory=list)
    displays: list[Rich] = field(default_factory=list)
    value: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    _shown: int = 0
    _valued: int = 0
    stdout: Capture = field(init=False)
    stderr: Capture = field(init=False)

    def __post_init__(self) -> None:
        self.stdout, self.stderr = Capture(self.cap), Capture(self.cap)

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """Take a piece of output. After a lost stream it may begin before or behind what came so far."""
        have, end = self.received[stream], offset + len(data)
        if end <= have:
            return
        gap = offset - have
        data = data[max(-gap, 0) :] if gap <= 0 else f"\n[... {gap} bytes lost ...]\n".encode() + data
        self.received[stream] = end
        (self.stdout if stream == "stdout" else self.stderr).feed(data)
        if self.stream is not None:
            self.stream.feed(stream, data)

    def display(self, mime: str, index: int, data: bytes) -> None:
        """Take one form of something that the program showed; forms of one thing have the same index."""
        if mime in PICTURES:
            if sum(len(picture.data) for picture in self.pictures) + len(data) > MAX_PICTURES or self._full():
                self.dropped += 1
                return
            self.pictures.append(Picture(mime, data))
            self.displays.append(Rich(index=index, mime_type=mime, size=len(data)))
            return
        text = self._room_for(mime, data, MAX_SHOWN - self._shown)
        if text is None or self._full():
            self.dropped += 1
            return
        self._shown += sent_size(text)
        self.displays.append(Rich(index=index, mime_type=mime, size=len(data), text=text))

    def result(self, mime: str, data: bytes) -> None:
        """Take one form of the last value."""
        if mime in PICTURES:
            self.display(mime, 1 + max((rich.index for rich in self.displays), default=-1), data)
            return
        if mime == "text/plain":
            data = _cut(data)
        text = self._room_for(mime, data, MAX_VALUE - self._valued)
        if text is None or mime in self.value:
            self.dropped += 1
            return
        self._valued += sent_size(text)
        self.value[mime] = text

    def _full(self) -> bool:
        # The runner keeps to this; what is in the sandbox may have become the runner.
        return len(self.displays) > protocol.MAX_DISPLAYS

    @staticmethod
    def _room_for(mime: str, data: bytes, room: int) -> str | None:
        if mime not in TEXTS or len(data) > room:
            return None
        text = data.decode("utf-8", "replace")
        return text if sent_size(text) <= room else None

    def answer(self, ended: Ended) -> RunAnswer:
        """Return what the caller gets: cut to what clients take."""
        room = MAX_RESULT - sum(len(base64.b64encode(picture.data)) for picture in self.pictures)
        cap = self.cap
        while True:
            result = self._result(ended, cap)
            if cap <= LEAST_CAP or _sent_size(result) <= room:
                return RunAnswer(result, list(self.pictures))
            cap //= 2

    def _result(self, ended: Ended, cap: int) -> RunResult:
        out, err = self.stdout.read(cap), self.stderr.read(cap)
        dropped = self.dropped + ended.displays_dropped
        return RunResult(
            sandbox=self.record.name,
            run_id=run_id(self.record.name, self.run),
            outcome=ended.outcome,
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=out.text,
            stdout_bytes=max(out.total, ended.stdout_bytes),
            stdout_truncated=out.truncated or ended.stdout_bytes > out.total,
            stderr=err.text,
            stderr_bytes=max(err.total, ended.stderr_bytes),
            stderr_truncated=err.truncated or ended.stderr_bytes > err.total,
            result=self.value or None,
            displays=self.displays,
            displays_dropped=dropped,
            context=self.request.context,
            context_state=ended.context_state,
            duration_ms=round(ended.duration_ms, 3) or round((time.perf_counter() - self.started) * 1e3, 3),
            cpu_ms=round(ended.cpu_ms, 3),
            max_rss_bytes=ended.max_rss_bytes,
            progress_dropped_bytes=self.stream.dropped if self.stream is not None else 0,
            hint=hint_for(ended.outcome, ended.detail, err.text, self.request.language, dropped),
        )


def _sent_size(result: RunResult) -> int:
    """Bytes of a result on the wire: once as JSON, once more as JSON inside a JSON string."""
    text = result.model_dump_json()
    if len(text) * 14 < MAX_RESULT // 2:  # a control character grows to 6 and then 7 more bytes
        return 0
    return len(text.encode()) + len(json.dumps(text, ensure_ascii=False).encode())


def sent_size(text: str) -> int:
    """Return the bytes that a text takes in an answer: as JSON, and as JSON inside a JSON string."""
    once = json.dumps(text, ensure_ascii=False)
    return len(once.encode("utf-8", "replace")) + len(json.dumps(once, ensure_ascii=False).encode("utf-8", "replace"))


def _cut(data: bytes) -> bytes:
    """Return plain text that is short enough, with what is missing said at its end."""
    size = len(data)
    kept = data[:MAX_TEXT]
    while sent_size(kept.decode("utf-8", "replace")) > MAX_VALUE * 3 // 4:  # the rest is for other forms
        kept = kept[: len(kept) // 2]
    if len(kept) == size:
        return data
    return kept.decode("utf-8", "ignore").encode() + f"... ({size} bytes in all)".encode()
