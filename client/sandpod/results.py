"""What calls return. A field that a newer server adds is left out, and one that an older one lacks has its default."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeVar


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a program showed, such as a figure."""

    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a run created or changed; `path` is relative to the workspace."""

    path: str
    size: int
    mime_type: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a program wrote; `dropped_bytes` before it came faster than they were read, and are gone."""

    stream: Literal["stdout", "stderr"]
    text: str
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run did.

    Attributes:
        outcome: ok, error, timeout, cancelled, out_of_memory, output_limit or sandbox_lost.
        result: The value of the last expression as text, in a context.
        results: The same by MIME type, such as text/html of a table.
        hint: What to do about a failure, where that is known.
        dropped_bytes: Output that callbacks did not get, since it came faster than they took it.
    """

    run_id: str
    sandbox: str
    outcome: str
    exit_code: int | None = None
    signal: str | None = None
    stdout: str = ""
    stdout_truncated: bool = False
    stderr: str = ""
    stderr_truncated: bool = False
    result: str | None = None
    results: Mapping[str, str] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    context: str | None = None
    context_state: str | None = None
    duration_ms: float = 0
    cpu_ms: float = 0
    max_rss_bytes: int = 0
    hint: str | None = None
    dropped_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.outcome == "ok"

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Return the result that a server tells."""
        results = body.get("result") or {}
        pictures = [
            Picture(each["mime_type"], base64.b64decode(each["data_base64"])) for each in body.get("pictures", ())
        ]
        artifacts = tuple(parsed(Artifact, each) for each in body.get("artifacts", ()))
        text = results.get("text/plain")
        return parsed(
            cls, {**body, "result": text, "results": results, "pictures": tuple(pictures), "artifacts": artifacts}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as its owner sees it. Times are RFC 3339."""

    sandbox: str
    status: str
    template: str
    created_at: str
    name: str | None = None
    reason: str | None = None
    message: str | None = None
    image: str | None = None
    network: str = "none"
    packages: list[str] = field(default_factory=list)
    last_activity_at: str | None = None
    expires_at: str | None = None
    age_seconds: float = 0
    running: int = 0
    persistent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file or folder; `path` is relative to the workspace."""

    path: str
    kind: str
    size: int = 0
    modified_at: str | None = None
    mime_type: str | None = None
    unreadable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run in a listing."""

    run_id: str
    language: str
    state: str
    started_at: str
    background: bool = False
    context: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """A context in a listing: idle, busy or lost."""

    name: str
    language: str
    state: str
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageInfo:
    """A package of a sandbox."""

    name: str
    version: str
    source: str = "installed"


_T = TypeVar("_T")


def parsed(kind: type[_T], body: Mapping[str, Any]) -> _T:
    """Return an object of a JSON object's fields."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in body.items() if name in names})
