"""What has changed in a folder between two looks at it: nothing in the sandbox watches it meanwhile."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sandpod_gateway.api.results import ErrorCode, FileEntry
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path
from sandpod_gateway.files.service import MAX_ENTRIES, Entry, Files, Listing
from sandpod_gateway.runner.messages import checked
from sandpod_gateway.sandboxes.endings import unusable
from sandpod_gateway.sandboxes.requests import ask_runner

Mark = tuple[str, int, float]
"""What is kept of a file: its kind, size and time."""


class Change(NamedTuple):
    """A file or folder that was made, written to or removed."""

    kind: Literal["create", "write", "remove"]
    path: str  # relative to the workspace
    entry: FileEntry | None = None  # as it is now


@dataclass(eq=False)
class Watch:
    """A folder of a sandbox, as it was at the last look; `recursive` with all below it.

    The first look is a use of the sandbox. The others neither resume it nor keep it from being suspended.
    """

    files: Files
    owner: str
    sandbox: str
    path: str
    recursive: bool
    _seen: Mapping[str, Mark] | None = field(default=None, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # each change is told once

    async def changes(self) -> list[Change]:
        """Return what has changed since the last look; nothing at the first one.

        Raises invalid_path, not_found (the folder is gone), quota_exceeded (it holds too much), session_busy (the
        sandbox is suspended), or as `Files.ask`.
        """
        async with self._lock:
            before, now = self._seen, await self._look()
            self._seen = {entry.path: mark(entry) for entry in now}
        return [] if before is None else list(changes(before, now))

    async def _look(self) -> Sequence[Entry]:
        check_path(self.path)
        fields = {"op": "list", "path": self.path, "recursive": self.recursive, "limit": MAX_ENTRIES}
        sandboxes, first = self.files.sandboxes, self._seen is None
        if first:
            record = await sandboxes.resolve(self.owner, self.sandbox, make=False)
        else:
            record = await sandboxes.find(self.owner, self.sandbox)
            if record.status != "Ready":
                raise unusable(record)
            await sandboxes.secrets.of(record)
        ask = ask_runner(sandboxes, record, lambda connection: connection.ask("file", fields), again=True, use=first)
        listing = checked(Listing, await ask)
        if listing.truncated:
            message = f"There are over {MAX_ENTRIES} files in this folder, too many to watch."
            raise SandpodError(ErrorCode.QUOTA_EXCEEDED, message, next_step="Watch a folder below it.")
        return listing.entries


def mark(entry: Entry) -> Mark:
    """Return what is kept of a file."""
    return entry.kind, entry.size, entry.mtime


def changes(before: Mapping[str, Mark], after: Sequence[Entry]) -> Iterator[Change]:
    """Yield how two looks differ: first what is gone, then what is new or has other content."""
    for path in before.keys() - {entry.path for entry in after}:
        yield Change("remove", path)
    for now in after:
        then = before.get(now.path)
        if then is None:
            yield Change("create", now.path, now.entry())
        if now.kind == "file" and (now.size > 0 if then is None else then != mark(now)):
            yield Change("write", now.path, now.entry())
