"""How installations are named and read: each is a run of its sandbox, whose last line says how it went.

So any gateway knows them. A sandbox is untrusted: what it says of an installation is checked, and goes to its own
caller alone.
"""

import asyncio
import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Final

from pydantic import Field

from sandpod_gateway.api.results import ErrorCode, Installation, Package
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.sandbox import LINE, MAX_PACKAGES, ReportedFailure, Sha256, Untrusted, Version
from sandpod_gateway.packages.talk import failure_of
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.messages import Ended, Tail, checked
from sandpod_gateway.runner.run_ids import INSTALLATION, run_id
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_runner.protocol import messages as protocol

_NAME: Final = re.compile(rf"{INSTALLATION}-(?P<request>[0-9a-f]{{16}})-(?P<began>[0-9a-f]{{11}})-[0-9a-f]{{8}}")
_TEXT: Final = 1000  # most characters of a sentence
_WAIT_ONCE: Final = 30.0  # seconds that the runner waits for more output in one request
_PAUSE: Final = 0.2  # seconds until it is asked again: an installation writes as it reads
_AT_ONCE: Final = 8  # requests without a pause: all that a program writes takes fewer

_Text = Annotated[str, Field(max_length=_TEXT)]


class _Package(Untrusted):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9@._~/-]{1,214}$")]
    version: Version
    sha256: Sha256 = None


class _Error(Untrusted):
    error: ErrorCode
    message: _Text
    cause: _Text | None = None
    next: _Text
    retry_after_seconds: Annotated[int | None, Field(ge=0, le=2**31)] = None


class _LastLine(Untrusted):
    """A result, or a report of a failure."""

    failure: ReportedFailure | None = None
    elapsed: Annotated[float | None, Field(ge=0, le=1e9, allow_inf_nan=False)] = None
    packages: Annotated[list[_Package], Field(max_length=MAX_PACKAGES)] = Field(default_factory=list)
    note: _Text | None = None
    error: _Error | None = None


def request_of(language: str, wanted: Sequence[object]) -> str:
    """Return what equal requests have in common in their names."""
    text = json.dumps([language, *map(str, wanted)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def new_name(request: str) -> str:
    """Return a name for an installation that begins now, as the runner knows it."""
    return f"{INSTALLATION}-{request}-{int(time.time() * 1000):011x}-{secrets.token_hex(4)}"


def is_of(name: str, request: str | None = None) -> bool:
    """Return whether a run is an installation, of that request if one is given."""
    found = _NAME.fullmatch(name)
    return found is not None and request in {None, found["request"]}


def elapsed(name: str) -> float:
    """Return the seconds since an installation began, as its name says."""
    found = _NAME.fullmatch(name)
    return max(0.0, round(time.time() - int(found["began"], 16) / 1000, 3)) if found is not None else 0.0


def result_line(name: str, packages: list[Package], note: str | None, error: SandpodError | None) -> bytes:
    """Return what an installation's program is to write last."""
    fields = {"elapsed": elapsed(name), "packages": [each.model_dump() for each in packages], "note": note}
    if error is not None:
        problem = error.problem().model_dump()
        fields["error"] = {key: each[:_TEXT] if type(each) is str else each for key, each in problem.items()}
    return base64.b64encode(json.dumps(fields).encode())


@dataclass(slots=True)
class Reading:
    """How far an installation is."""

    ended: Ended | None = None
    last: bytes = b""  # the end of what its program has written

    def as_result(self, sandbox: str, name: str) -> Installation:
        """Return it as callers see it."""
        fields = {"installation": run_id(sandbox, name), "sandbox": sandbox}
        if self.ended is None:
            return Installation(**fields, status="installing", elapsed=elapsed(name))
        line = self._line()
        seconds = line.elapsed if line.elapsed is not None else round(self.ended.duration_ms / 1e3, 3)
        error = self.error
        if error is not None:
            return Installation(**fields, status="failed", elapsed=seconds, **error.problem().model_dump())
        packages = [Package(**each.model_dump()) for each in line.packages]
        return Installation(**fields, status="success", elapsed=seconds, packages=packages, note=line.note)

    @property
    def error(self) -> SandpodError | None:
        """Why it has failed, if it has ended and has."""
        if self.ended is None:
            return None
        line = self._line()
        if line.failure is not None:
            return line.failure.error()
        if (found := line.error) is not None:
            retry = found.retry_after_seconds
            return SandpodError(found.error, found.message, cause=found.cause, next_step=found.next, retry_after=retry)
        return failure_of(self.ended) if line.elapsed is None else None

    def _line(self) -> _LastLine:
        lines = [line for line in self.last.replace(b".", b"").split(b"\n") if line]
        try:
            return _LastLine.model_validate_json(base64.b64decode(lines[-1], validate=True))
        except (IndexError, ValueError):
            return _LastLine()


async def read(sandboxes: Sandboxes, record: SandboxRecord, name: str, wait: float) -> Reading:
    """Return how far an installation is, at its end or after `wait` seconds.

    The runner is asked at the gateway's pace, however soon it answers. Raises not_found, sandbox_lost, backend_error.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + wait

    async def look(connection: RunnerConnection) -> Reading:
        reading, cursor = Reading(), 0
        for requests in count(1):
            left = max(0.0, deadline - now())
            fields = {"run": name, "cursor": cursor, "wait": min(left, _WAIT_ONCE), "limit": protocol.FILE_PART}
            reply = await connection.ask("tail", fields)
            tail = checked(Tail, reply)
            cursor = tail.cursor
            written = b"".join(data for stream, data in tail.parts(reply.payload) if stream == "stdout")
            reading.last = (reading.last + written)[-2 * LINE :]
            if tail.end is not None and (not written or cursor >= tail.end.stdout_bytes + tail.end.stderr_bytes):
                reading.ended = tail.end
                break
            if requests < _AT_ONCE and (left or tail.end is not None):
                continue
            if not left:
                break
            await asyncio.sleep(min(_PAUSE, left))
        return reading

    return await ask_runner(sandboxes, record, look, again=True)
