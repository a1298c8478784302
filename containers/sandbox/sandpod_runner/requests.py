"""Checks what a `run` frame asks for. Pure; called by `runs.py`. What comes is not trusted to be what it should."""

import json
import math
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sandpod_runner import protocol
from sandpod_runner.errors import Refusal

DEFAULT_TIMEOUT: Final = 60.0
MAX_TIMEOUT: Final = 7 * 24 * 3600.0
DEFAULT_OUTPUT: Final = 64 * 1024 * 1024
MAX_TEXT: Final = 120_000
"""Largest single argument or variable, bytes: Linux takes 128 KiB, its name and end included."""
MAX_KEY: Final = 128
"""Longest idempotency key or name of a context, bytes."""
CONTEXT_LANGUAGES: Final = ("python", "javascript")


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a run may take at most, whatever it asks for.

    Attributes:
        timeout: Seconds.
        output: Bytes.
    """

    timeout: float = MAX_TIMEOUT
    output: int = sys.maxsize


NO_LIMITS: Final = RunLimits()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that may be started: everything has its type and is within its limits."""

    run: str
    language: str
    code: bytes = field(repr=False)
    args: list[str]
    env: dict[str, str] = field(repr=False)
    cwd: str
    stdin: bool
    timeout: float
    output_limit: int
    detached: bool
    acks: bool
    key: str | None
    context: str | None

    def within(self, limits: RunLimits) -> "RunRequest":
        """Return the request as far as the limits allow it."""
        timeout, output = min(self.timeout, limits.timeout), min(self.output_limit, limits.output)
        return replace(self, timeout=timeout, output_limit=output)


def parse_run(header: dict[str, Any], code: bytes, languages: Collection[str]) -> RunRequest:
    """Return the request.

    Args:
        header: The frame's fields.
        code: The program.
        languages: What can be run.

    Raises:
        Refusal: A field is missing, malformed or over its limit.
    """
    language = header.get("language")
    if not isinstance(language, str) or language not in languages:
        raise Refusal("unsupported_language", f"This sandbox runs {', '.join(sorted(languages)) or 'nothing'}.")
    if language == "shell" and b"\0" in code:
        raise Refusal("invalid_content", "The command has a NUL byte in it.")
    return RunRequest(
        run=run_name(header),
        language=language,
        code=code,
        args=_args(header.get("args")),
        env=_env(header.get("env")),
        cwd=_cwd(header.get("cwd")),
        stdin=flag(header, "stdin"),
        timeout=_timeout(header.get("timeout")),
        output_limit=_output_limit(header.get("output_limit")),
        detached=flag(header, "detached"),
        acks=flag(header, "acks"),
        key=_key(header.get("key")),
        context=_context(header.get("context"), language),
    )


def fingerprint(request: RunRequest) -> bytes:
    """Return what an idempotency key stands for: the code, its language, its arguments and its context."""
    import hashlib  # noqa: PLC0415 - for runs with a key alone: it brings all of OpenSSL

    rest = json.dumps([request.language, request.args, request.context]).encode()
    return hashlib.sha256(hashlib.sha256(rest).digest() + request.code).digest()


def run_name(header: dict[str, Any]) -> str:
    """Return the name of the run that a frame is about.

    Raises:
        Refusal: It is missing or malformed.
    """
    name = header.get("run")
    if not isinstance(name, str) or not protocol.RUN_ID.fullmatch(name):
        raise Refusal("invalid_argument", "A run's name is 1 to 64 letters, digits, - or _.")
    return name


def whole(header: dict[str, Any], name: str, default: int) -> int:
    """Return a field that is a whole number, 0 or more.

    Raises:
        Refusal: invalid_argument: it is something else.
    """
    value = header.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refusal("invalid_argument", f"{name} is a whole number, 0 or more.")
    return value


def request_number(header: dict[str, Any]) -> int:
    """Return the number that the answer to a request carries.

    Raises:
        Refusal: invalid_argument: there is none.
    """
    number = header.get("id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise Refusal("invalid_argument", "A request has a whole number as its id.")
    return number


def _args(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(_is_text(item) for item in value):
        raise Refusal("invalid_argument", "Arguments are a list of texts without NUL, each below 120,000 bytes.")
    return value


def _env(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(_is_name(key) and _is_text(item) for key, item in value.items()):
        raise Refusal("invalid_argument", "The environment is names and texts without NUL, each below 120,000 bytes.")
    return value


def _cwd(value: Any) -> str:
    if value is None or value == "":
        return "."
    if not isinstance(value, str):
        raise Refusal("invalid_argument", "The working directory is a path in the workspace.")
    return value


def flag(header: dict[str, Any], name: str) -> bool:
    """Return a field that is true or false, and false where it is absent.

    Raises:
        Refusal: invalid_argument: it is something else.
    """
    value = header.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise Refusal("invalid_argument", f"{name} is true or false.")
    return value


def _key(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value.encode("utf-8", "surrogatepass")) <= MAX_KEY:
        raise Refusal("invalid_argument", f"An idempotency key is a text of 1 to {MAX_KEY} bytes.")
    return value


def _context(value: Any, language: str) -> str | None:
    if value is None:
        return None
    if language not in CONTEXT_LANGUAGES:
        message = "Contexts are for Python and JavaScript: leave the context out for other languages."
        raise Refusal("invalid_argument", message)
    if not _is_text(value) or not 1 <= len(value.encode("utf-8", "surrogateescape")) <= MAX_KEY:
        raise Refusal("invalid_argument", f"A context's name is a text of 1 to {MAX_KEY} bytes.")
    return str(value)


def _timeout(value: Any) -> float:
    if value is None:
        return DEFAULT_TIMEOUT
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise Refusal("invalid_argument", "The timeout is a number of seconds over 0.")
    return min(float(value), MAX_TIMEOUT)


def _output_limit(value: Any) -> int:
    if value is None:
        return DEFAULT_OUTPUT
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise Refusal("invalid_argument", "The output limit is a whole number of bytes over 0.")
    return value


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return len(value.encode("utf-8", "surrogateescape")) < MAX_TEXT
    except UnicodeEncodeError:
        return False


def _is_name(value: str) -> bool:
    return bool(value) and "=" not in value and _is_text(value)
