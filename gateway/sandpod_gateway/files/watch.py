"""What has changed in a folder between two looks at it: nothing in the sandbox watches it meanwhile."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sandpod_gateway.api.results import ErrorCode, FileEntry
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path
from sandpod_gateway.files.service import MAX_ENTRIES, Entry, Files, Listing
from sandpod_gateway.runner.messages import checked

Seen = Mapping[str, Entry]


class Change(NamedTuple):
    """A file or folder that was made, written to or removed."""

    kind: Literal["create", "write", "remove"]
    path: str  # relative to the workspace
    entry: FileEntry | None = None  # as it is now


@dataclass
class Watch:
    """A folder of a sandbox, as it was at the last look; `recursive` with all below it."""

    files: Files
    owner: str
    sandbox: str
    path: str
    recursive: bool
    _seen: Seen | None = field(default=None, init=False)

    async def changes(self) -> list[Change]:
        """Return what has changed since the last look; nothing at the first one.

        Raises invalid_path, not_found (the folder is gone), quota_exceeded (it holds too much), or as `Files.ask`.
        """
        before, self._seen = self._seen, await self._look()
        return [] if before is None else list(changes(before, self._seen))

    async def _look(self) -> Seen:
        check_path(self.path)
        fields = {"op": "list", "path": self.path, "recursive": self.recursive, "limit": MAX_ENTRIES}
        _, reply = await self.files.ask(self.owner, self.sandbox, fields)
        listing = checked(Listing, reply)
        if listing.truncated:
            message = f"There are over {MAX_ENTRIES} files in this folder, too many to watch."
            raise SandpodError(ErrorCode.QUOTA_EXCEEDED, message, next_step="Watch a folder below it.")
        return {entry.path: entry for entry in listing.entries}


def changes(before: Seen, after: Seen) -> Iterator[Change]:
    """Yield how two looks differ: first what is gone, then what is new or has other content."""
    for path in before.keys() - after.keys():
        yield Change("remove", path)
    for path, now in after.items():
        then = before.get(path)
        if then is None:
            yield Change("create", path, now.entry())
        if now.kind == "file" and (now.size > 0 if then is None else (then.mtime, then.size) != (now.mtime, now.size)):
            yield Change("write", path, now.entry())
