"""What a `run` frame asks for, of which nothing is trusted, and why a run is ended. Pure."""

import json
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import flag, require, run_name, seconds, whole

DEFAULT_TIMEOUT: Final = 60.0
MAX_TIMEOUT: Final = 7 * 24 * 3600.0
DEFAULT_OUTPUT: Final = 64 * 1024 * 1024
MAX_TEXT: Final = 120_000  # largest single argument or variable, bytes: Linux takes 128 KiB, its name and end included
MAX_KEY: Final = 128  # longest idempotency key or name of a context, bytes
CONTEXT_LANGUAGES: Final = ("python", "javascript")
_TEXTS: Final = f"texts without NUL, each below {MAX_TEXT} bytes"


Outcome = Literal["ok", "error", "timeout", "cancelled", "out_of_memory", "output_limit", "sandbox_lost"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run is ended before its program ends."""

    outcome: Outcome
    detail: str | None = None  # a sentence for the caller
    gentle: bool = True  # whether the program may clean up first


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
    terminal: bool = False

    @property
    def long(self) -> bool:
        """Whether the run is remembered long."""
        return self.detached or self.key is not None


def parse_run(
    header: dict[str, Any],
    code: bytes,
    languages: Collection[str],
    max_timeout: float = MAX_TIMEOUT,
    max_output: int = sys.maxsize,
) -> RunRequest:
    """Return the request, within these limits. Raises Refusal: A field is missing, malformed or too large."""
    language = header.get("language")
    if not isinstance(language, str) or language not in languages:
        raise Refusal("unsupported_language", f"This sandbox runs {', '.join(sorted(languages)) or 'nothing'}.")
    if language == "shell" and b"\0" in code:
        raise Refusal("invalid_content", "The command has a NUL byte in it.")
    args, env, cwd = _given(header, "args", []), _given(header, "env", {}), _given(header, "cwd", "") or "."
    require(isinstance(args, list) and all(map(_is_text, args)), f"args must be a list of {_TEXTS}.")
    named = isinstance(env, dict) and all(_is_text(name) and name and "=" not in name for name in env)
    require(named and all(map(_is_text, env.values())), f"env must be an object of {_TEXTS}.")
    require(isinstance(cwd, str), "cwd must be a path in the workspace.")
    context = _short_text(header, "context")
    require(context is None or _is_text(context), "context must be a text without NUL.")
    require(context is None or language in CONTEXT_LANGUAGES, "Only Python and JavaScript have contexts.")
    timeout = seconds(header, "timeout", DEFAULT_TIMEOUT, MAX_TIMEOUT)
    require(timeout > 0, "timeout must be a number of seconds over 0.")
    output_limit = whole(header, "output_limit", DEFAULT_OUTPUT)
    require(output_limit > 0, "output_limit must be a whole number of bytes over 0.")
    return RunRequest(
        run=run_name(header),
        language=language,
        code=code,
        args=args,
        env=env,
        cwd=cwd,
        stdin=flag(header, "stdin"),
        timeout=min(timeout, max_timeout),
        output_limit=min(output_limit, max_output),
        detached=flag(header, "detached"),
        acks=flag(header, "acks"),
        key=_short_text(header, "key"),
        context=context,
    )


def fingerprint(request: RunRequest) -> bytes:
    """Return what an idempotency key stands for: the code, its language, its arguments and its context."""
    import hashlib  # noqa: PLC0415 - for runs with a key alone: it brings all of OpenSSL

    rest = json.dumps([request.language, request.args, request.context]).encode()
    return hashlib.sha256(hashlib.sha256(rest).digest() + request.code).digest()


def _given(header: dict[str, Any], name: str, default: Any) -> Any:
    value = header.get(name)
    return default if value is None else value


def _short_text(header: dict[str, Any], name: str) -> str | None:
    value = header.get(name)
    right = value is None or (isinstance(value, str) and 1 <= len(value.encode("utf-8", "surrogatepass")) <= MAX_KEY)
    require(right, f"{name} must be a text of 1 to {MAX_KEY} bytes.")
    return value


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return len(value.encode("utf-8", "surrogateescape")) < MAX_TEXT
    except UnicodeEncodeError:
        return False
