"""Links to files of callers' own sandboxes, at the address that callers know this server by, and what they serve."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel

from sandpod_api.base import rfc3339
from sandpod_gateway.api.results import Artifact, ArtifactContent, ArtifactList, ErrorCode, FileLink, WorkspaceLink
from sandpod_gateway.api.run_results import RunOutput, RunResult
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.auth.links import Links, Method
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path, inside_workspace
from sandpod_gateway.files.service import Files, Version
from sandpod_gateway.runner.messages import Message, checked, senseless
from sandpod_gateway.sandboxes.requests import talking
from sandpod_gateway.usage.amounts import Account
from sandpod_runner.protocol import messages as protocol
from sandpod_telemetry import attributes, tracing

_Model = TypeVar("_Model", bound=BaseModel)

MAX_URLS: Final = 32 * 1024  # characters of all links of one answer


@dataclass(frozen=True, slots=True)
class LinkMaker:
    """Makes links to files of callers' own sandboxes, valid for `expires` seconds unless a call says otherwise.

    `address` returns the address that the caller knows this server by, or None where links can't lead here.
    """

    files: Files
    links: Links
    expires: int
    address: Callable[[], str | None]

    async def make(
        self, owner: str, path: str, *, sandbox: str | None, method: Literal["get", "put"], expires: int | None
    ) -> FileLink:
        """Return a link to a file; one to upload need not exist yet.

        Raises invalid_path, session_not_found, not_found (no file to download), invalid_argument (nobody could open
        it), or backend_unavailable (no key to sign it with).
        """
        check_path(path)
        inside, base = inside_workspace(path), self._base()
        if method == "put":
            name = (await self.files.sandboxes.resolve(owner, sandbox)).name
        else:
            name, reply = await self.files.ask(owner, sandbox, {"op": "stat", "path": path})
            if reply.header.get("kind") == "directory":
                step = "Link to a file in it, or call fetch_workspace for all files."
                raise SandpodError(ErrorCode.INVALID_PATH, "The path is a folder.", next_step=step)
        return FileLink(path=inside, method=method, **self._signed(base, method, name, inside, expires))

    async def workspace(self, owner: str, *, sandbox: str | None, form: str) -> WorkspaceLink:
        """Return a link to an archive of a workspace, a tar.gz or zip. Raises as `make` does, but for the path."""
        base = self._base()
        record = await self.files.sandboxes.resolve(owner, sandbox, make=False)
        return WorkspaceLink(**self._signed(base, "archive", record.name, form))

    def _signed(self, base: str, method: Method, sandbox: str, path: str, seconds: int | None = None) -> dict[str, str]:
        link, end = self.links.make(current_caller(), method, sandbox, path, seconds=seconds or self.expires)
        return {"sandbox": sandbox, "url": base + link, "expires_at": rfc3339(datetime.fromtimestamp(end, UTC))}

    def url(self, sandbox: str, path: str) -> str | None:
        """Return a link to a file of a sandbox that was resolved, or None where links can't lead here."""
        try:
            return self._signed(self._base(), "get", sandbox, path)["url"]
        except SandpodError:
            return None

    def linked(self, model: _Model) -> _Model:
        """Return a result with links to its files."""
        update: dict[str, Any] = {}
        if isinstance(model, RunOutput) and model.result is not None:
            update["result"] = self.linked(model.result)
        elif isinstance(model, RunResult | ArtifactList):
            update["artifacts"] = self._linked(model.sandbox, model.artifacts)
        elif isinstance(model, ArtifactContent):
            update["url"] = self.url(model.sandbox, model.path)
        return model.model_copy(update=update) if update else model

    def _linked(self, sandbox: str, artifacts: list[Artifact]) -> list[Artifact]:
        """Return artifacts with links, as far as these fit into an answer."""
        room, linked = MAX_URLS, []
        for artifact in artifacts:
            url = self.url(sandbox, artifact.path) if room > 0 else None
            room -= len(url or "")
            linked.append(artifact.model_copy(update={"url": url if room >= 0 else None}))
        return linked

    def _base(self) -> str:
        if (base := self.address()) is None:
            message = "This server serves no links over standard input and output."
            step = "Use read_file and write_file, or ask for the setting links.loopback."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        return base


class _ArchivePart(Message):
    last: bool


@dataclass(frozen=True, slots=True)
class LinkHolder:
    """For whom a link acts: whose sandbox it is, and to whom its use is charged."""

    owner: str
    account: Account


@dataclass(frozen=True, slots=True)
class Transfers:
    """Reads and writes files of sandboxes for holders of links, which were checked before.

    A file is never whole in memory: each part is requested when the one before was consumed, so a slow client slows the
    sandbox down and nothing piles up.
    """

    files: Files
    max_bytes: int  # of an upload

    async def look(self, owner: str, sandbox: str, path: str) -> Version:
        """Return a file's version. Raises session_not_found, not_found, invalid_path (no regular file, too)."""
        check_path(path)
        record = await self.files.sandboxes.resolve(owner, sandbox)
        return (await self.files.read_part(record, path, 0, 0))[0]

    async def read(
        self, holder: LinkHolder, sandbox: str, path: str, version: Version, span: range
    ) -> AsyncGenerator[bytes, None]:
        """Yield bytes of a file in parts. Raises as `look` does, quota_exceeded, or session_busy: it was changed."""
        record = await self.files.sandboxes.resolve(holder.owner, sandbox)
        offset = span.start
        while offset < span.stop:
            limit = min(protocol.FILE_PART, span.stop - offset)
            now, data = await self.files.read_part(record, path, offset, limit)
            if now != version or not data:
                message, step = "The file was changed while it was sent.", "Open the link again."
                raise SandpodError(ErrorCode.SESSION_BUSY, message, next_step=step)
            self._move(holder.account, record.name, out=len(data))
            yield data
            offset += len(data)

    def check_upload(self, holder: LinkHolder, size: int) -> None:
        """Raise upload_too_large, or quota_exceeded, for a file that has so many bytes, or more."""
        if size > self.max_bytes:
            raise self._too_large()
        self.files.sandboxes.meter.check_bytes(holder.account, size, upload=True)

    async def write(self, holder: LinkHolder, sandbox: str, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Write a file from chunks of any size; it appears whole at the end or not at all. Returns its size.

        Bytes count for the day as they come, for a file that does not appear, too.
        Raises session_not_found, invalid_path, quota_exceeded, upload_too_large, sandbox_lost.
        """
        check_path(path)
        size = 0

        async def parts() -> AsyncIterator[bytes]:
            nonlocal size
            buffer = bytearray()
            async for chunk in chunks:
                size += len(chunk)
                if size > self.max_bytes:
                    raise self._too_large()
                self._move(holder.account, sandbox, into=len(chunk))
                buffer += chunk
                while len(buffer) >= protocol.FILE_PART:
                    yield bytes(buffer[: protocol.FILE_PART])
                    del buffer[: protocol.FILE_PART]
            yield bytes(buffer)

        async with talking(
            self.files.sandboxes, await self.files.sandboxes.resolve(holder.owner, sandbox)
        ) as connection:
            with tracing.span("sandbox.file.write", {attributes.SANDBOX: sandbox}):
                await connection.upload({"path": path, "overwrite": True}, parts())
                tracing.note({attributes.BYTES: size})
        return size

    async def archive(self, holder: LinkHolder, sandbox: str, form: str) -> AsyncGenerator[bytes, None]:
        """Yield a tar.gz or zip of the workspace in parts. Raises session_not_found, quota_exceeded, sandbox_lost."""
        archive, part = secrets.token_hex(8), 0
        # One connection for all of it: the state of an archive belongs to a connection.
        async with talking(
            self.files.sandboxes, await self.files.sandboxes.resolve(holder.owner, sandbox)
        ) as connection:
            while True:
                with tracing.span("sandbox.file.archive", {attributes.SANDBOX: sandbox}):
                    asked = {"op": "archive", "archive": archive, "part": part, "form": form}
                    reply = await connection.ask("file", asked)
                    tracing.note({attributes.BYTES: len(reply.payload)})
                if checked(_ArchivePart, reply).last:
                    return
                if not reply.payload:
                    raise senseless()
                self._move(holder.account, sandbox, out=len(reply.payload))
                yield reply.payload
                part += 1

    def _move(self, account: Account, sandbox: str, *, into: int = 0, out: int = 0) -> None:
        self.files.sandboxes.meter.move(account, sandbox, into=into, out=out)
        self.files.metrics.file_bytes.labels("in").inc(into)
        self.files.metrics.file_bytes.labels("out").inc(out)

    def _too_large(self) -> SandpodError:
        message = f"The file is over {self.max_bytes} bytes."
        step = "Send it in several files and join them with a run."
        return SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message, next_step=step)
