"""What a run may ask for, checked before anything is made. Pure; called by `runs.py` and the tools."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_runner.protocol import messages as protocol

if TYPE_CHECKING:
    from sandpod_gateway.runs.recorder import RunRequest

MAX_ARGUMENTS: Final = 1000
MAX_ARGUMENTS_BYTES: Final = 100 * 1024  # below the frame's header limit even when all of it is escaped once
MAX_NAME: Final = 128  # bytes of a context's name or an idempotency key, as in the runner's protocol
MAX_PATH: Final = 4096  # bytes, as in Linux


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """Bounds of single runs.

    Attributes:
        code_bytes: Longest program, bytes.
        stdin_bytes: Longest input, bytes.
        default_timeout: Seconds for a run that names none.
        max_timeout: Most seconds that a run may ask for.
        output_cap: Bytes of each stream that a result keeps.
        output_limit: Bytes of output at which a run is ended.
    """

    code_bytes: int
    stdin_bytes: int
    default_timeout: float
    max_timeout: float
    output_cap: int
    output_limit: int

    def timeout(self, wanted: float | None) -> float:
        """Return a run's timeout, seconds."""
        return self.default_timeout if wanted is None else float(wanted)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def check_text(text: str, what: str) -> None:
    """Refuse text that can't be told to a program: lone surrogates have no UTF-8.

    Raises:
        SandpodError: invalid_content.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SandpodError(
            ErrorCode.INVALID_CONTENT,
            f"The {what} is not valid Unicode text.",
            next_step="Send text that can be written as UTF-8.",
        ) from error


def _invalid(message: str, next_step: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=next_step)


def check_run(request: "RunRequest", limits: RunLimits) -> None:
    """Refuse what no sandbox should be bothered with.

    Raises:
        SandpodError: unsupported_language, code_too_large, upload_too_large (stdin), invalid_content,
            invalid_argument.
    """
    _check_language(request.language)
    _check_code(request.code, limits)
    if request.stdin is not None:
        check_text(request.stdin, "input")
        if _size(request.stdin) > limits.stdin_bytes:
            raise SandpodError(
                ErrorCode.UPLOAD_TOO_LARGE,
                f"The input is over {limits.stdin_bytes} bytes.",
                next_step="Write it to a file with write_file and read that.",
            )
    timeout = limits.timeout(request.timeout)
    if not 0 < timeout <= limits.max_timeout:
        raise _invalid(
            f"A run's timeout is more than 0 and at most {limits.max_timeout:g} seconds.", "Ask for a shorter run."
        )
    _check_arguments(request)
    _check_name(request.context, "context")
    _check_name(request.key, "idempotency key")


def _check_language(language: str) -> None:
    if not protocol.LANGUAGE.fullmatch(language):
        raise SandpodError(
            ErrorCode.UNSUPPORTED_LANGUAGE,
            "There is no such language.",
            next_step="Use python, javascript, shell or one that the sandbox's template adds: sandpod://capabilities "
            "lists them.",
        )


def _check_code(code: str, limits: RunLimits) -> None:
    check_text(code, "code")
    if _size(code) > limits.code_bytes:
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
    if not text or not text.isprintable() or _size(text) > MAX_NAME:
        raise _invalid(
            f"The {what} has 1 to {MAX_NAME} bytes, and no control characters.", "Choose a shorter or simpler one."
        )


def _check_arguments(request: "RunRequest") -> None:
    texts = [*request.args, *request.env, *request.env.values(), request.cwd]
    for text in texts:
        check_text(text, "argument")
        if "\0" in text:
            raise _invalid("An argument has a NUL character in it.", "Leave it out.")
    for name in request.env:
        if not name or "=" in name:
            raise _invalid("A variable's name is empty or has a = in it.", "Use a name such as MY_VAR.")
    if len(texts) > MAX_ARGUMENTS or sum(map(_size, texts)) > MAX_ARGUMENTS_BYTES:
        raise _invalid("Arguments and environment are too large.", "Pass the data as stdin or in a file.")
    if _size(request.cwd) > MAX_PATH:
        raise SandpodError(ErrorCode.INVALID_PATH, "The path is too long.", next_step="Use a shorter one.")
