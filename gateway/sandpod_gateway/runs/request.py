"""What a caller wants to run, checked before anything is made. Pure."""

from dataclasses import dataclass, field
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language
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
from sandpod_runner.protocol import messages as protocol

OTHER_NAMES: Final = {
    "bash": Language.SHELL,
    "sh": Language.SHELL,
    "zsh": Language.SHELL,
    "js": Language.JAVASCRIPT,
    "node": Language.JAVASCRIPT,
    "node.js": Language.JAVASCRIPT,
    "nodejs": Language.JAVASCRIPT,
    "npm": Language.JAVASCRIPT,
    "ts": Language.JAVASCRIPT,
    "typescript": Language.JAVASCRIPT,
    "py": Language.PYTHON,
    "python3": Language.PYTHON,
    "pip": Language.PYTHON,
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
    timeout: float | None = None
    context: str | None = None  # None for a fresh process
    key: str | None = None  # idempotency key
    strip_ansi: bool = False  # take terminal control sequences out of the output
    max_output: int | None = None  # characters; None for the server's default
    packages: list[str] = field(default_factory=list)  # what is installed before it, unless it is there


def _invalid(message: str, next_step: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=next_step)


def check_run(request: RunRequest, limits: RunLimits) -> None:
    """Refuse what no sandbox should be bothered with.

    Raises unsupported_language, code_too_large, upload_too_large (stdin), invalid_content, invalid_argument.
    """
    if not protocol.LANGUAGE.fullmatch(request.language):
        raise SandpodError(
            ErrorCode.UNSUPPORTED_LANGUAGE,
            "Unsupported language.",
            next_step="Use python, javascript, shell or one that the sandbox's template adds: sandpod://capabilities "
            "lists them.",
        )
    _check_code(request.code, limits)
    if request.stdin is not None:
        check_text(request.stdin, "input")
        if text_size(request.stdin) > limits.stdin_bytes:
            raise SandpodError(
                ErrorCode.UPLOAD_TOO_LARGE,
                f"The input is over {limits.stdin_bytes} bytes.",
                next_step="Write it to a file with write_file and read that.",
            )
    timeout = limits.timeout(request.timeout)
    if not 0 < timeout <= limits.max_run_timeout:
        raise _invalid(
            f"A run's timeout is more than 0 and at most {limits.max_run_timeout:g} seconds.",
            "Set a timeout in that range; start_run is for programs that take long.",
        )
    _check_arguments(request)
    _check_name(request.context, "context")
    _check_name(request.key, "idempotency key")


def _check_code(code: str, limits: RunLimits) -> None:
    check_text(code, "code")
    if text_size(code) > limits.code_bytes:
        raise SandpodError(
            ErrorCode.CODE_TOO_LARGE,
            f"The code is over {limits.code_bytes} bytes.",
            next_step="Put data into files with write_file, and keep the code short.",
        )
    if "\0" in code:
        raise SandpodError(
            ErrorCode.INVALID_CONTENT,
            "The code has a NUL character in it, which no language here takes.",
            next_step="Write it as an escape such as \\0 inside a string.",
        )


def _check_name(text: str | None, what: str) -> None:
    if text is None:
        return
    check_text(text, what)
    if not text or not text.isprintable() or text_size(text) > MAX_NAME:
        raise _invalid(
            f"The {what} has 1 to {MAX_NAME} bytes, and no control characters.", "Choose a shorter or simpler one."
        )


def _check_arguments(request: RunRequest) -> None:
    texts = [*request.args, *request.env, *request.env.values(), request.cwd]
    for text in texts:
        check_text(text, "argument")
        if "\0" in text:
            raise _invalid("An argument has a NUL character in it.", "Leave it out.")
    for name in request.env:
        if not name or "=" in name:
            raise _invalid("A variable's name is empty or has a = in it.", "Use a name such as MY_VAR.")
    if len(texts) > MAX_ARGUMENTS or sum(map(text_size, texts)) > MAX_ARGUMENTS_BYTES:
        raise _invalid("Arguments and environment are too large.", "Pass the data as stdin or in a file.")
    if text_size(request.cwd) > MAX_PATH:
        raise SandpodError(ErrorCode.INVALID_PATH, "The path is too long.", next_step="Use a shorter one.")
