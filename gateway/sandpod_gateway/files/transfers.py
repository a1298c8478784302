"""Transfers of files through the gateway in parts, never whole in its memory.

Each part is requested when the one before was consumed: a slow client slows the sandbox down and nothing piles up.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path
from sandpod_gateway.files.service import Version, read_part
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.runner.messages import Message, checked, senseless
from sandpod_gateway.sandboxes.requests import talking
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_runner.protocol import messages as protocol


class _ArchivePart(Message):
    last: bool


class ChangedError(Exception):
    """The file was changed while it was sent."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Reads and writes files of sandboxes for holders of links, which were checked before."""

    sandboxes: Sandboxes
    metrics: Metrics
    max_bytes: int  # of an upload

    async def look(self, owner: str, sandbox: str, path: str) -> Version:
        """Return a file's version. Raises session_not_found, not_found, invalid_path (no regular file, too)."""
        check_path(path)
        version, _ = await read_part(self.sandboxes, await self.sandboxes.resolve(owner, sandbox), path, 0, 0)
        return version

    async def read(self, owner: str, sandbox: str, path: str, version: Version, span: range) -> AsyncIterator[bytes]:
        """Yield bytes of a file in parts. Raises as `look` does, or ChangedError: it was changed."""
        record = await self.sandboxes.resolve(owner, sandbox)
        offset = span.start
        while offset < span.stop:
            limit = min(protocol.FILE_PART, span.stop - offset)
            now, data = await read_part(self.sandboxes, record, path, offset, limit)
            if now != version or not data:
                raise ChangedError
            self.metrics.file_bytes.labels("out").inc(len(data))
            yield data
            offset += len(data)

    async def write(self, owner: str, sandbox: str, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Write a file from chunks of any size; it appears whole at the end or not at all. Returns its size.

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
                    message = f"The file is over {self.max_bytes} bytes."
                    step = "Send it in several files and join them with a run."
                    raise SandpodError(ErrorCode.UPLOAD_TOO_LARGE, message, next_step=step)
                buffer += chunk
                while len(buffer) >= protocol.FILE_PART:
                    yield bytes(buffer[: protocol.FILE_PART])
                    del buffer[: protocol.FILE_PART]
            yield bytes(buffer)

        async with talking(self.sandboxes, await self.sandboxes.resolve(owner, sandbox)) as connection:
            await connection.upload({"path": path, "overwrite": True}, parts())
        self.metrics.file_bytes.labels("in").inc(size)
        return size

    async def archive(self, owner: str, sandbox: str, form: str) -> AsyncGenerator[bytes, None]:
        """Yield a tar.gz or zip of the workspace in parts. Raises session_not_found, sandbox_lost."""
        archive, part = secrets.token_hex(8), 0
        # One connection for all of it: the state of an archive belongs to a connection.
        async with talking(self.sandboxes, await self.sandboxes.resolve(owner, sandbox)) as connection:
            while True:
                reply = await connection.ask("file", {"op": "archive", "archive": archive, "part": part, "form": form})
                if checked(_ArchivePart, reply).last:
                    return
                if not reply.payload:
                    raise senseless()
                self.metrics.file_bytes.labels("out").inc(len(reply.payload))
                yield reply.payload
                part += 1
