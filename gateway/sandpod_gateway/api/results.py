"""What calls about sandboxes, files and packages return, and the coded error that takes a result's place."""

from enum import StrEnum
from typing import Annotated, Literal, Self, TypeVar

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


Count = Annotated[int, Field(ge=0)]
_T = TypeVar("_T")
OnlyIfSet = Annotated[_T | None, Field(exclude_if=lambda value: value is None)]
"""A field that a result has only where there is something in it."""


class ResultModel(BaseModel):
    """A result: snake_case on the wire, as MCP clients expect."""

    model_config = ConfigDict(extra="forbid", use_enum_values=True)


class OfSandbox(ResultModel):
    """A result about one sandbox."""

    sandbox: str  # the handle


class OfFile(OfSandbox):
    """A result about one file or folder."""

    path: str  # relative to the workspace


class Problem(ResultModel):
    """The coded error that a call returns instead of its result."""

    error: ErrorCode  # what went wrong, as one of a fixed list of codes
    message: str  # what went wrong, in a sentence
    cause: str | None = None  # what is behind it, where it is known
    next: str
    retry_after_seconds: OnlyIfSet[int] = None  # after which the same call may be accepted, where that is known


class Artifact(ResultModel):
    """A file that a run created or changed."""

    path: str  # relative to the workspace
    size: Count
    mime_type: str
    url: str | None = None  # a signed, expiring link to it


class SandboxInfo(ResultModel):
    """A sandbox as its owner sees it. Times are RFC 3339."""

    sandbox: str  # the handle; pass it to the other tools
    name: str | None = None  # the name that its owner gave it
    status: str  # Pending, Ready, Failed, Expired or Suspended
    reason: str | None = None  # why it is not ready
    message: str | None = None  # why, in a sentence
    template: str  # the template it was made from
    image: str | None = None  # the container image, or the local Python
    packages: list[str] = []  # added packages with versions, of get_sandbox; a restarted server knows only later ones
    network: str = "none"  # its network profile; none means no network at all
    created_at: str  # when it was claimed
    last_activity_at: str | None = None  # when it was last used
    expires_at: str | None = None  # when it ends; each use puts that off, but not beyond its ttl
    age_seconds: Annotated[float, Field(ge=0)] = 0  # seconds since it was claimed
    running: Count = 0  # runs that calls wait for in it now
    persistent: bool = False  # whether its files stay while it is suspended; it is resumed when it is used


class SandboxList(ResultModel):
    """The caller's sandboxes."""

    sandboxes: list[SandboxInfo]


class Closed(OfSandbox):
    """A sandbox that was closed."""

    closed: Literal[True] = True


class FileEntry(ResultModel):
    """A file or folder of a workspace."""

    path: str  # relative to the workspace
    kind: Literal["file", "directory", "symlink", "other"]
    size: Count = 0
    modified_at: str | None = None  # when it was last changed, RFC 3339
    mime_type: str | None = None
    unreadable: bool = False  # whether its permissions forbid reading it


class FileList(OfFile):
    """A listing of a folder."""

    entries: list[FileEntry]
    truncated: bool = False  # whether there are more than these


class FileContent(OfFile):
    """What was read of a file."""

    encoding: Literal["utf-8", "base64"]  # how `content` is written
    content: str
    offset: Count = 0  # where the content starts in the file, bytes
    bytes: Count  # bytes that the content stands for
    size: Count  # the whole file's size, bytes
    truncated: bool = False  # whether the file goes on after the content


class FileWritten(OfFile):
    """A file that was written."""

    size: Count
    sha256: str  # SHA-256 of the content, hexadecimal
    hint: str | None = None  # what a caller may count on and is gone


class FileStat(FileEntry):
    """What is known of one file or folder."""

    sandbox: str


class FileChanged(OfFile):
    """A file or folder that was made or deleted."""

    hint: str | None = None  # what a caller may count on and is gone


class FileMoved(OfSandbox):
    """A file or folder that was moved."""

    source: str  # where it was, relative to the workspace
    destination: str  # where it is, relative to the workspace


class FileLink(OfFile):
    """A link to a file, which works without a key until it ends."""

    method: Literal["get", "put"]  # what it allows
    url: str
    expires_at: str  # when it ends, RFC 3339


class FileUploaded(OfFile):
    """A file that was uploaded, or the link to upload it by."""

    size: int | None = None  # bytes, of a file that was written
    sha256: str | None = None  # SHA-256 of the content, of a file that was written
    url: str | None = None  # the link to put the file to, where no content was given
    expires_at: str | None = None  # when the link ends, RFC 3339
    hint: str | None = None  # what a caller may count on and is gone


class WorkspaceLink(OfSandbox):
    """A link to a whole workspace, which works without a key until it ends."""

    url: str  # the link; what it leads to is a tar.gz
    expires_at: str  # when it ends, RFC 3339


class ArtifactList(OfSandbox):
    """Files that runs created or changed, and that are still there."""

    artifacts: list[Artifact]
    truncated: bool = False  # whether there are more than these


class ArtifactContent(OfFile):
    """An artifact that was read: an image as a block of the answer, anything else as its beginning."""

    size: Count
    mime_type: str
    encoding: Literal["utf-8", "base64", "image"]  # how it is given; an image is a block of the answer
    content: str | None = None  # the content, but for images
    truncated: bool = False  # whether the file goes on; read_file or the link give the rest
    url: str | None = None  # a signed, expiring link to it


class Package(ResultModel):
    """A package of an installation."""

    name: str
    version: str
    sha256: str | None = None  # SHA-256 of its wheel or npm package; none where the image has it


class Installation(ResultModel):
    """An installation of packages, and how far it is."""

    installation: str  # its name; pass it to get_installation
    sandbox: str  # the handle of the sandbox
    status: Literal["installing", "success", "failed"]
    elapsed: Annotated[float, Field(ge=0)]  # seconds since it began, or that it took
    packages: list[Package] = Field(default_factory=list)  # those asked for and what they need
    note: OnlyIfSet[str] = None  # such as that scripts were not run
    # Without a failure there is no field of one: everywhere else an answer with `error` is a refusal.
    error: OnlyIfSet[ErrorCode] = None  # why it failed
    message: OnlyIfSet[str] = None  # why it failed, in a sentence
    cause: OnlyIfSet[str] = None  # what is behind it, where it is known
    next: OnlyIfSet[str] = None
    retry_after_seconds: OnlyIfSet[int] = None  # after which the same call may be accepted, where that is known


class PackageInfo(Package):
    """A package in a listing."""

    source: Literal["installed", "image"]  # whether it was added or is the image's own


class PackageList(OfSandbox):
    """The packages of a sandbox: those that were added, then the image's own."""

    language: str
    packages: list[PackageInfo]
