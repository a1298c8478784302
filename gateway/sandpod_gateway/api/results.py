"""What a call returns: run results, sandboxes, files, and the coded error that takes their place.

MCP tools, REST and CLI return these same models.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field


class ErrorCode(StrEnum):
    """Every way in which a call can be refused or fail before it gives its own result, with its HTTP status."""

    http_status: int

    def __new__(cls, value: str, http_status: int = 0) -> Self:
        """Make a code. Its status has a default for look-ups by value alone; a member without one is a mistake."""
        code = str.__new__(cls, value)
        code._value_ = value
        code.http_status = http_status
        return code

    INVALID_SESSION_ID = "invalid_session_id", 400
    INVALID_ARGUMENT = "invalid_argument", 400
    CODE_TOO_LARGE = "code_too_large", 413
    UPLOAD_TOO_LARGE = "upload_too_large", 413
    INVALID_FILENAME = "invalid_filename", 400
    INVALID_PATH = "invalid_path", 400
    INVALID_CONTENT = "invalid_content", 400
    FILE_EXISTS = "file_exists", 409
    MAX_SESSIONS = "max_sessions", 429
    SESSION_BUSY = "session_busy", 409
    SESSION_NOT_FOUND = "session_not_found", 404
    NOT_FOUND = "not_found", 404
    ARTIFACT_TOO_LARGE = "artifact_too_large", 413
    BACKEND_ERROR = "backend_error", 500
    BACKEND_UNAVAILABLE = "backend_unavailable", 503
    EXECUTION_FAILED = "execution_failed", 500
    TIMEOUT = "timeout", 408
    OUT_OF_MEMORY = "out_of_memory", 507
    CANCELLED = "cancelled", 503
    QUOTA_EXCEEDED = "quota_exceeded", 507
    RATE_LIMITED = "rate_limited", 429
    UNAUTHORIZED = "unauthorized", 401
    FORBIDDEN = "forbidden", 403
    IMAGE_PULL_FAILED = "image_pull_failed", 503
    UNSCHEDULABLE = "unschedulable", 503
    POOL_EXHAUSTED = "pool_exhausted", 503
    PACKAGE_BLOCKED = "package_blocked", 403
    SANDBOX_LOST = "sandbox_lost", 410
    UNSUPPORTED_LANGUAGE = "unsupported_language", 400


WorkspacePath = Annotated[str, Field(description="Its path, relative to the workspace.")]
Bytes = Annotated[int, Field(ge=0, description="Bytes.")]
Hint = Annotated[str | None, Field(description="What a caller may count on and is gone, in a sentence.")]


class ResultModel(BaseModel):
    """A result: snake_case on the wire, as MCP clients expect."""

    model_config = ConfigDict(extra="forbid", use_enum_values=True)


class Problem(ResultModel):
    """The coded error that a call returns instead of its result."""

    error: Annotated[ErrorCode, Field(description="What went wrong, as one of a fixed list of codes.")]
    message: Annotated[str, Field(description="What went wrong, in a sentence.")]
    cause: Annotated[str | None, Field(description="What is behind it, where it is known.")] = None
    next: Annotated[str, Field(description="What to do about it.")]


class Artifact(ResultModel):
    """A file that a run created or changed."""

    path: WorkspacePath
    size: Bytes
    mime_type: Annotated[str, Field(description="Its type, by its name.")]
    url: Annotated[str | None, Field(description="A signed, expiring link to it.")] = None


class SandboxInfo(ResultModel):
    """A sandbox as its owner sees it. Times are RFC 3339."""

    sandbox: Annotated[str, Field(description="The handle; pass it to the other tools.")]
    name: Annotated[str | None, Field(description="The name that its owner gave it.")] = None
    status: Annotated[str, Field(description="Pending, Ready, Failed, Expired or Suspended.")]
    reason: Annotated[str | None, Field(description="Why it is not ready.")] = None
    message: Annotated[str | None, Field(description="Why, in a sentence.")] = None
    template: Annotated[str, Field(description="The template it was made from.")]
    image: Annotated[str | None, Field(description="The container image, or the local Python.")] = None
    packages: Annotated[
        list[str],
        Field(description="Added packages with versions, of get_sandbox; a restarted server knows only later ones."),
    ] = []
    network: Annotated[str, Field(description="Its network profile; none means no network at all.")] = "none"
    created_at: Annotated[str, Field(description="When it was claimed.")]
    last_activity_at: Annotated[str | None, Field(description="When it was last used.")] = None
    expires_at: Annotated[
        str | None, Field(description="When it ends; each use puts that off, but not beyond its ttl.")
    ] = None
    age_seconds: Annotated[float, Field(ge=0, description="Seconds since it was claimed.")] = 0
    running: Annotated[
        int, Field(ge=0, description="Runs that calls wait for in it now; list_runs tells those in the background too.")
    ] = 0
    persistent: Annotated[
        bool, Field(description="Whether its files stay while it is suspended; it is resumed when it is used.")
    ] = False


class SandboxList(ResultModel):
    """The caller's sandboxes."""

    sandboxes: list[SandboxInfo]


class Closed(ResultModel):
    """A sandbox that was closed."""

    sandbox: str
    closed: Literal[True] = True


class FileEntry(ResultModel):
    """A file or folder of a workspace."""

    path: WorkspacePath
    kind: Annotated[Literal["file", "directory", "symlink", "other"], Field(description="What it is.")]
    size: Bytes = 0
    modified_at: Annotated[str | None, Field(description="When it was last changed, RFC 3339.")] = None
    mime_type: Annotated[str | None, Field(description="Its type, by its name.")] = None


class FileList(ResultModel):
    """A listing of a folder."""

    sandbox: str
    path: str
    entries: list[FileEntry]
    truncated: Annotated[bool, Field(description="Whether there are more than these.")] = False


class FileContent(ResultModel):
    """What was read of a file."""

    sandbox: str
    path: str
    encoding: Annotated[Literal["utf-8", "base64"], Field(description="How `content` is written.")]
    content: str
    offset: Annotated[int, Field(ge=0, description="Where the content starts in the file, bytes.")] = 0
    bytes: Annotated[int, Field(ge=0, description="Bytes that the content stands for.")]
    size: Annotated[int, Field(ge=0, description="The whole file's size, bytes.")]
    truncated: Annotated[bool, Field(description="Whether the file goes on after the content.")] = False


class FileWritten(ResultModel):
    """A file that was written."""

    sandbox: str
    path: str
    size: Bytes
    sha256: Annotated[str, Field(description="SHA-256 of the content, hexadecimal.")]
    hint: Hint = None


class FileStat(FileEntry):
    """What is known of one file or folder."""

    sandbox: str


class FileChanged(ResultModel):
    """A file or folder that was made or deleted."""

    sandbox: str
    path: WorkspacePath
    hint: Hint = None


class FileMoved(ResultModel):
    """A file or folder that was moved."""

    sandbox: str
    source: Annotated[str, Field(description="Where it was, relative to the workspace.")]
    destination: Annotated[str, Field(description="Where it is, relative to the workspace.")]


class FileLink(ResultModel):
    """A link to a file, which works without a key until it ends."""

    sandbox: str
    path: WorkspacePath
    method: Annotated[Literal["get", "put"], Field(description="What it allows.")]
    url: Annotated[str, Field(description="The link.")]
    expires_at: Annotated[str, Field(description="When it ends, RFC 3339.")]


class FileUploaded(ResultModel):
    """A file that was uploaded, or the link to upload it by."""

    sandbox: str
    path: WorkspacePath
    size: Annotated[int | None, Field(description="Bytes, of a file that was written.")] = None
    sha256: Annotated[str | None, Field(description="SHA-256 of the content, of a file that was written.")] = None
    url: Annotated[str | None, Field(description="The link to put the file to, where no content was given.")] = None
    expires_at: Annotated[str | None, Field(description="When the link ends, RFC 3339.")] = None
    hint: Hint = None


class WorkspaceLink(ResultModel):
    """A link to a whole workspace, which works without a key until it ends."""

    sandbox: str
    url: Annotated[str, Field(description="The link; what it leads to is a tar.gz.")]
    expires_at: Annotated[str, Field(description="When it ends, RFC 3339.")]


class ArtifactList(ResultModel):
    """Files that runs created or changed, and that are still there."""

    sandbox: str
    artifacts: list[Artifact]
    truncated: Annotated[bool, Field(description="Whether there are more than these.")] = False


class ArtifactContent(ResultModel):
    """An artifact that was read: an image beside this, anything else as its beginning."""

    sandbox: str
    path: WorkspacePath
    size: Bytes
    mime_type: Annotated[str, Field(description="Its type, by its name.")]
    encoding: Annotated[
        Literal["utf-8", "base64", "image"], Field(description="How it is given; an image is beside this.")
    ]
    content: Annotated[str | None, Field(description="The content, but for images.")] = None
    truncated: Annotated[bool, Field(description="Whether the file goes on; read_file or the link give the rest.")] = (
        False
    )
    url: Annotated[str | None, Field(description="A signed, expiring link to it.")] = None
