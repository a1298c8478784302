"""What a caller wants to run: checked before anything is made, and started in a sandbox."""

import time
from dataclasses import dataclass, field
from typing import Any, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import (
    MAX_ARGUMENTS,
    MAX_ARGUMENTS_BYTES,
    MAX_NAME,
    MAX_PATH,
    RunLimits,
    check_text,
    text_size,
)
from sandpod_gateway.masking.current import current_call
from sandpod_gateway.runner.connection import RunnerConnection
from sandpod_gateway.runner.demux import RunHandle
from sandpod_gateway.runner.run_ids import new_run, run_id
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.sandboxes.secrets import NONE, SecretSet
from sandpod_runner.protocol import messages as protocol

OTHER_NAMES: Final = {
    **dict.fromkeys(("bash", "sh", "zsh"), Language.SHELL),
    **dict.fromkeys(("js", "node", "node.js", "nodejs", "npm", "ts", "typescript"), Language.JAVASCRIPT),
    **dict.fromkeys(("py", "python3", "pip"), Language.PYTHON),
}
"""Other names that models give languages. A template's own language of such a name comes first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What to run. Times in seconds; `cwd` is relative to the workspace."""

    language: str
    code: str
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."
    stdin: str | None = None
    open_stdin: bool = False  # input comes later, by `BackgroundRuns.write`
    timeout: float | None = None
    context: str | None = None  # None for a fresh process
    key: str | None = None  # idempotency key
    strip_ansi: bool = False  # take terminal control sequences out of the output
    max_output: int | None = None  # characters; None for the server's default
    packages: list[str] = field(default_factory=list)  # what is installed before it, unless it is there

    @property
    def size(self) -> int:
        """Bytes of its code and input."""
        return text_size(self.code) + text_size(self.stdin or "")


@dataclass(kw_only=True, slots=True)
class ActiveRun:
    """A run that is going on."""

    record: SandboxRecord
    request: RunRequest
    recorder: Recorder
    secrets: SecretSet = NONE
    run: str = field(default_factory=new_run)  # its name, as the runner knows it
    cursor: int | None = None  # where reading goes on, of a run that an earlier call with the same key has started
    begun: float = field(default_factory=time.perf_counter)
    handle: RunHandle | None = None  # what is known of it, once it was sent to the runner
    accepted: bool = False  # whether the runner has it

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.begun

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes in and out."""
        return self.request.size, sum(stream.taken for stream in self.recorder.streams.values())

    def so_far(self) -> tuple[str, tuple[int, int]] | None:
        """Return its name as callers know it and the bytes that it has moved; None where the runner may not have it."""
        return (run_id(self.record.name, self.run), self.moved) if self.accepted and self.cursor is None else None

    @property
    def cpu(self) -> float:
        """Seconds of processor time. Where nobody can tell it any more, it is the time since it was sent.

        Else whoever closes the sandbox before the end, or drops the connection, would use any.
        """
        if self.handle is None:
            return 0.0
        ended = self.handle.ended
        known = ended.done() and not ended.cancelled() and ended.exception() is None
        return ended.result().cpu_ms / 1e3 if known else self.elapsed


def check_run(request: RunRequest, limits: RunLimits) -> None:
    """Raise unsupported_language, code_too_large, upload_too_large (stdin), invalid_content or invalid_argument."""
    if not protocol.LANGUAGE.fullmatch(request.language):
        step = (
            "Use python, javascript, shell or one that the sandbox's template adds: sandpod://capabilities lists them."
        )
        raise _refusal("Unsupported language.", step, ErrorCode.UNSUPPORTED_LANGUAGE)
    check_text(request.code, "code")
    if text_size(request.code) > limits.code_bytes:
        step = "Put data into files with write_file, and keep the code short."
        raise _refusal(f"The code is over {limits.code_bytes} bytes.", step, ErrorCode.CODE_TOO_LARGE)
    if "\0" in request.code:
        message = "The code has a NUL character in it, which no language here takes."
        raise _refusal(message, "Write it as an escape such as \\0 inside a string.", ErrorCode.INVALID_CONTENT)
    if request.stdin is not None:
        check_text(request.stdin, "input")
        if text_size(request.stdin) > limits.stdin_bytes:
            step = "Write it to a file with write_file and read that."
            raise _refusal(f"The input is over {limits.stdin_bytes} bytes.", step, ErrorCode.UPLOAD_TOO_LARGE)
    if not 0 < limits.timeout(request.timeout) <= limits.max_run_timeout:
        message = f"A run's timeout is more than 0 and at most {limits.max_run_timeout:g} seconds."
        raise _refusal(message, "Set a timeout in that range; start_run is for programs that take long.")
    _check_arguments(request)
    for text, what in ((request.context, "context"), (request.key, "idempotency key")):
        if text is not None:
            check_text(text, what)
            if not text or not text.isprintable() or text_size(text) > MAX_NAME:
                message = f"The {what} has 1 to {MAX_NAME} bytes, and no control characters."
                raise _refusal(message, "Choose a shorter or simpler one.")


def _refusal(message: str, next_step: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> SandpodError:
    return SandpodError(code, message, next_step=next_step)


def _check_arguments(request: RunRequest) -> None:
    texts = [*request.args, *request.env, *request.env.values(), request.cwd]
    for text in texts:
        check_text(text, "argument")
        if "\0" in text:
            raise _refusal("An argument has a NUL character in it.", "Leave it out.")
    if any(not name or "=" in name for name in request.env):
        raise _refusal("A variable's name is empty or has a = in it.", "Use a name such as MY_VAR.")
    if len(texts) > MAX_ARGUMENTS or sum(map(text_size, texts)) > MAX_ARGUMENTS_BYTES:
        raise _refusal("Arguments and environment are too large.", "Pass the data as stdin or in a file.")
    if text_size(request.cwd) > MAX_PATH:
        raise _refusal("The path is too long.", "Use a shorter one.", ErrorCode.INVALID_PATH)


async def start_run(
    connection: RunnerConnection, active: ActiveRun, limits: RunLimits, *, detached: bool = False
) -> RunHandle:
    """Start a program, `detached` from whoever waits for it; one that another connection has started is not again.

    It gets the secrets that are for it; where the call names a variable itself, that one counts.
    Raises unsupported_language, not_found (the value of a secret), or ConnectionLostError: the stream has ended.
    """
    request = active.request
    language = _language_in(connection, request)
    header: dict[str, Any] = {
        "run": active.run,
        "language": language,
        "env": active.secrets.env(current_call().tool, language) | request.env,
        "stdin": request.stdin is not None or request.open_stdin,
        "timeout": limits.timeout(request.timeout),
        "output_limit": limits.output_bytes,
        "detached": detached,
        "acks": not detached,
    }
    for name in ("args", "cwd", "context", "key"):
        if (value := getattr(request, name)) is not None:
            header[name] = value
    handle = await connection.start_run(header, request.code.encode(), active.recorder)
    if request.stdin is not None:
        await connection.send_stdin(active.run, request.stdin.encode())
    return handle


def _language_in(connection: RunnerConnection, request: RunRequest) -> str:
    """Return the language of a run as its sandbox calls it. Raises unsupported_language."""
    languages = connection.hello.languages
    for name in (request.language, OTHER_NAMES.get(request.language)):
        if name in languages:
            return str(name)
    step = (
        f"It has: {', '.join(sorted(languages)) or 'none'}. Use one of them, or create_sandbox with a template that "
        "has it: sandpod://capabilities lists the languages of each."
    )
    raise _refusal(f"This sandbox has no {request.language}.", step, ErrorCode.UNSUPPORTED_LANGUAGE)
