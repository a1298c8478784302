"""Files of a sandbox's workspace, by way of its runner: reading, changing, and the artifacts of runs.

Paths are checked by the runner, inside the sandbox, after they are opened; only their form is checked here. Content is
bounded before it is sent and after it is received: the runner is untrusted.
"""

import asyncio
import hashlib
import mimetypes
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from sandpod_api.base import rfc3339
from sandpod_gateway.api import results
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.content import MAX_PICTURES, PICTURES, Answer, Picture, as_text, mime_type
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path, shown_path
from sandpod_gateway.limits import MAX_SPELLED_PATH
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runner.messages import ArtifactEntry, Count, Message, checked
from sandpod_gateway.runner.run_ids import split_run_id
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_gateway.usage.amounts import account_of
from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import Frame
from sandpod_telemetry import attributes, tracing

MAX_READ: Final = 128 * 1024
"""Most bytes of a file in one result: as JSON, counted twice, they stay below what clients take."""
SMALL_BINARY: Final = 4 * 1024
"""Most bytes of a file that is not text that are returned without being asked for: more wastes a model's context."""
MAX_ENTRIES: Final = 2000
MAX_LISTED: Final = 500  # artifacts
MAX_ARTIFACT: Final = 128 * 2**20  # bytes of an artifact that is read at all; a link gives larger ones


class Entry(Message):
    """One entry of a runner's listing."""

    path: Annotated[str, Field(max_length=MAX_SPELLED_PATH)]
    kind: Literal["file", "directory", "symlink", "other"]
    size: Count = 0
    mtime: Annotated[float, Field(allow_inf_nan=False)] = 0
    unreadable: bool = False

    def entry(self) -> results.FileEntry:
        """Return it as callers see it."""
        mime = mimetypes.guess_type(self.path)[0] if self.kind == "file" else None
        known = self.model_dump(include={"path", "kind", "size", "unreadable"})
        return results.FileEntry(**known, modified_at=_time(self.mtime), mime_type=mime)


class Listing(Message):
    """A runner's listing of a folder."""

    entries: Annotated[list[Entry], Field(max_length=MAX_ENTRIES)]
    truncated: bool = False


class _Artifacts(Message):
    entries: Annotated[list[ArtifactEntry], Field(max_length=MAX_ENTRIES)] = Field(default_factory=list)
    truncated: bool = False


class Version(Message):
    """A file as it was when it was looked at: size in bytes, time in seconds since 1970."""

    size: Count
    mtime: Annotated[float, Field(allow_inf_nan=False)] = 0


class Part(NamedTuple):
    """A part of a file."""

    sandbox: str
    size: int  # bytes of the whole file
    taken: int  # bytes that the part stands for
    data: bytes  # what it shows of them


def _time(seconds: float) -> str | None:
    """Return a file's time; None for one that RFC 3339 can't express: programs set any."""
    try:
        return rfc3339(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Files:
    """Reads, writes and lists files in callers' sandboxes."""

    sandboxes: Sandboxes
    metrics: Metrics
    max_upload: int  # bytes of a file in one call
    default_read: int  # most bytes of a read that names no limit

    async def list(
        self, owner: str, path: str, *, sandbox: str | None, recursive: bool, limit: int
    ) -> results.FileList:
        """List a folder. Raises invalid_path, not_found, or what `Sandboxes.resolve` raises."""
        check_path(path)
        fields = {"op": "list", "path": path, "recursive": recursive, "limit": min(limit, MAX_ENTRIES)}
        name, reply = await self.ask(owner, sandbox, fields)
        listing = checked(Listing, reply)
        entries = [entry.entry() for entry in listing.entries]
        return results.FileList(sandbox=name, path=shown_path(path), entries=entries, truncated=listing.truncated)

    async def read(
        self, owner: str, path: str, *, sandbox: str | None, span: tuple[int, int | None], encoding: str | None
    ) -> results.FileContent:
        """Read a part of a file: from an offset so many bytes, or the server's default.

        Raises invalid_path, not_found, invalid_content (not text, and text was asked for).
        """
        offset, limit = span[0], min(span[1] or self.default_read, MAX_READ)
        name, size, taken, data = await self.part(owner, path, sandbox=sandbox, offset=offset, limit=limit)
        used, text = as_text(data, encoding)
        if used == "base64" and encoding is None and span[1] is None and len(data) > SMALL_BINARY:
            message = f"The file is not text: {mime_type(path)}, {size} bytes."
            step = "Call read_artifact to look at an image, or read_file with encoding=base64 for the bytes."
            raise SandpodError(ErrorCode.INVALID_CONTENT, message, next_step=step)
        common = {"sandbox": name, "path": shown_path(path), "size": size, "truncated": offset + taken < size}
        return results.FileContent(**common, encoding=used, content=text, offset=offset, bytes=taken)

    async def ask(
        self, owner: str, sandbox: str | None, fields: dict[str, Any], *, kind: str = "file", make: bool = False
    ) -> tuple[str, Frame]:
        """Send a request to a sandbox's runner, and return the sandbox's name and the reply.

        With `make` a default sandbox is created when there is none. Raises what `Sandboxes.resolve` raises, the
        runner's refusal, or sandbox_lost.
        """
        record = await self.sandboxes.resolve(owner, sandbox, make=make)
        again = fields.get("op") not in {"delete", "move"}  # the others are idempotent
        with tracing.span(f"sandbox.file.{fields.get('op', kind)}", {attributes.SANDBOX: record.name}):
            reply = await ask_runner(self.sandboxes, record, lambda of: of.ask(kind, fields), again=again)
        return record.name, reply

    async def part(self, owner: str, path: str, *, sandbox: str | None, limit: int, offset: int = 0) -> Part:
        """Return a part of a file, masked. Raises invalid_path, not_found."""
        check_path(path)
        account, meter = account_of(current_caller()), self.sandboxes.meter
        meter.check_bytes(account)
        record = await self.sandboxes.resolve(owner, sandbox, make=False)
        masker = (await self.sandboxes.secrets.of(record)).masker
        if masker is None:
            version, data = await self.read_part(record, path, offset, limit)
            taken = len(data)
        else:  # with as much on both sides as a value may have there
            before = min(offset, masker.longest)
            most = min(before + limit + masker.longest, max(limit, protocol.FILE_PART))
            version, around = await self.read_part(record, path, offset - before, most)
            taken = max(0, min(limit, len(around) - before))
            data = await asyncio.to_thread(masker.part, around, before, before + taken)
        meter.move(account, record.name, out=taken)
        self.metrics.file_bytes.labels("out").inc(taken)
        return Part(record.name, version.size, taken, data)

    async def read_part(self, record: SandboxRecord, path: str, offset: int, limit: int) -> tuple[Version, bytes]:
        """Return a file as it is now, and at most `limit` bytes of it. Raises invalid_path, not_found, sandbox_lost."""
        fields = {"op": "read", "path": path, "offset": offset, "limit": limit}
        with tracing.span("sandbox.file.read", {attributes.SANDBOX: record.name}):
            reply = await ask_runner(self.sandboxes, record, lambda of: of.ask("file", fields), again=True)
            tracing.note({attributes.BYTES: len(reply.payload)})
        return checked(Version, reply), reply.payload[:limit]

    async def whole(self, owner: str, path: str, *, sandbox: str, limit: int) -> bytes:
        """Return all bytes of a file of at most `limit`. Raises invalid_path, not_found, artifact_too_large."""
        _, size, _, data = await self.part(owner, path, sandbox=sandbox, limit=limit)
        if size > limit:
            step = "Read it in parts with read_file, or make a link to it with create_link."
            raise SandpodError(ErrorCode.ARTIFACT_TOO_LARGE, f"The file is over {limit} bytes.", next_step=step)
        return data

    def check_upload(self, data: bytes) -> None:
        """Check the size of content to write. Raises upload_too_large."""
        if len(data) > self.max_upload:
            message = f"The content is over {self.max_upload} bytes."
            step = "Call upload_file without content for a link that takes larger files."
            raise SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message, next_step=step)

    async def write(
        self, owner: str, path: str, data: bytes, *, sandbox: str | None, overwrite: bool
    ) -> results.FileWritten:
        """Write a file, whole or not at all. Raises invalid_path, upload_too_large, file_exists, quota_exceeded."""
        check_path(path)
        self.check_upload(data)
        account, meter = account_of(current_caller()), self.sandboxes.meter
        meter.check_bytes(account, len(data), upload=True)
        fields = {"path": path, "overwrite": overwrite}
        record = await self.sandboxes.resolve(owner, sandbox)
        known: attributes.Attributes = {attributes.SANDBOX: record.name, attributes.BYTES: len(data)}
        with meter.moving(account, record.name, files=len(data)), tracing.span("sandbox.file.write", known):
            await ask_runner(
                self.sandboxes, record, lambda connection: connection.upload(fields, _parts(data)), again=overwrite
            )
        self.metrics.file_bytes.labels("in").inc(len(data))
        digest = hashlib.sha256(data).hexdigest()
        hint = self.sandboxes.replaced(record.name)
        return results.FileWritten(sandbox=record.name, path=shown_path(path), size=len(data), sha256=digest, hint=hint)

    async def stat(self, owner: str, path: str, *, sandbox: str | None) -> results.FileStat:
        """Return the metadata of a file or folder; a link is not followed. Raises invalid_path, not_found."""
        check_path(path)
        name, reply = await self.ask(owner, sandbox, {"op": "stat", "path": path})
        return results.FileStat(sandbox=name, **dict(checked(Entry, reply).entry()))

    async def make_directory(self, owner: str, path: str, *, sandbox: str | None) -> results.FileChanged:
        """Make a folder and its parents, unless it exists. Raises invalid_path, file_exists, quota_exceeded."""
        check_path(path)
        name, _ = await self.ask(owner, sandbox, {"op": "mkdir", "path": path}, make=True)
        return results.FileChanged(sandbox=name, path=shown_path(path), hint=self.sandboxes.replaced(name))

    async def delete(self, owner: str, path: str, *, sandbox: str | None, recursive: bool) -> results.FileChanged:
        """Delete a file, a link, or a folder: an empty one, or with `recursive` all that is in it.

        Raises invalid_path (also for a folder that is not empty), not_found.
        """
        check_path(path)
        name, _ = await self.ask(owner, sandbox, {"op": "delete", "path": path, "recursive": recursive})
        return results.FileChanged(sandbox=name, path=shown_path(path))

    async def move(
        self, owner: str, source: str, destination: str, *, sandbox: str | None, overwrite: bool
    ) -> results.FileMoved:
        """Move a file or folder. Raises invalid_path, not_found (the destination's folder, too), file_exists."""
        check_path(destination)
        check_path(source)
        fields = {"op": "move", "path": source, "destination": destination, "overwrite": overwrite}
        name, _ = await self.ask(owner, sandbox, fields)
        return results.FileMoved(sandbox=name, source=shown_path(source), destination=shown_path(destination))

    async def artifacts(self, owner: str, *, sandbox: str | None, since: str | None) -> results.ArtifactList:
        """List the files that runs created or changed since the run `since` began, and that still exist.

        Without `sandbox` it is that run's, or the default one. Raises as `ask` does, or not_found (the run).
        """
        fields = {}
        if since is not None:
            place, run = split_run_id(since)
            if sandbox is not None and sandbox != place:
                message, step = "That run is of another sandbox.", "Leave the sandbox out."
                raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
            sandbox, fields = place, {"since": run}
        name, reply = await self.ask(owner, sandbox, fields, kind="artifacts")
        listing = checked(_Artifacts, reply)
        found = [entry.artifact() for entry in listing.entries[:MAX_LISTED]]
        more = listing.truncated or len(listing.entries) > MAX_LISTED
        return results.ArtifactList(sandbox=name, artifacts=found, truncated=more)

    async def artifact(self, owner: str, path: str, *, sandbox: str | None) -> Answer[results.ArtifactContent]:
        """Read an artifact: an image as such, anything else as text or base64 up to the limit of a result.

        Raises invalid_path, not_found, artifact_too_large.
        """
        kind = mime_type(path)
        limit = MAX_PICTURES if kind in PICTURES else MAX_READ
        name, size, taken, data = await self.part(owner, path, sandbox=sandbox, limit=limit)
        if size > MAX_ARTIFACT or (kind in PICTURES and size > limit):
            message = f"The file has {size} bytes, too many to be read here."
            step = "Make a link to it with create_link, or read parts of it with read_file."
            raise SandpodError(ErrorCode.ARTIFACT_TOO_LARGE, message, next_step=step)
        common = {"sandbox": name, "path": shown_path(path), "size": size, "mime_type": kind}
        if kind in PICTURES:
            return Answer(results.ArtifactContent(**common, encoding="image"), [Picture(kind, data)])
        encoding, content = as_text(data, None)
        return Answer(results.ArtifactContent(**common, encoding=encoding, content=content, truncated=taken < size))


async def _parts(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, max(1, len(data)), protocol.FILE_PART):
        yield data[start : start + protocol.FILE_PART]
