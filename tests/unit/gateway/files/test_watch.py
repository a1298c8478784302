"""What has changed in a folder between two looks at it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import Entry
from sandpod_gateway.files.watch import Watch, changes, mark
from sandpod_runner.protocol.frames import Frame


def entry(path: str, size: int = 1, mtime: float = 1.0, kind: Any = "file") -> Entry:
    return Entry(path=path, kind=kind, size=size, mtime=mtime)


def test_what_is_new_gone_or_written_to_is_told_apart() -> None:
    before = [entry("same"), entry("gone"), entry("grown"), entry("touched"), entry("dir", kind="directory")]
    after = [
        *(entry("same"), entry("grown", size=2), entry("touched", mtime=1.5), entry("new"), entry("empty", size=0)),
        *(entry("dir", mtime=9.0, kind="directory"), entry("folder", kind="directory")),
    ]
    found = changes({each.path: mark(each) for each in before}, after)
    assert [(each.kind, each.path, each.entry is None) for each in found] == [
        ("remove", "gone", True),
        *(("write", "grown", False), ("write", "touched", False)),
        *(("create", "new", False), ("write", "new", False), ("create", "empty", False), ("create", "folder", False)),
    ]


class Folder:
    """A sandbox with one folder, and what leads to it."""

    def __init__(self) -> None:
        self.status = "Ready"
        self.message = self.reason = None
        self.listing: dict[str, Any] = {"entries": []}
        self.uses: list[bool] = []
        self.sandboxes = self.secrets = self

    async def resolve(self, *_: str, make: bool) -> Any:
        assert not make
        return self

    async def find(self, *_: str) -> Any:
        return self

    async def of(self, _: Any) -> None:
        pass

    @asynccontextmanager
    async def connection(self, _: Any, *, use: bool) -> AsyncIterator[Any]:
        self.uses.append(use)
        yield self

    async def ask(self, *_: Any) -> Frame:
        await asyncio.sleep(0)
        return Frame({"t": "reply", **self.listing}, b"")


async def test_a_watch_ends_where_it_finds_too_much_or_a_sandbox_that_is_suspended() -> None:
    folder: Any = Folder()
    watch = Watch(folder, "ann", "sbx", ".", recursive=True)
    assert await watch.changes() == []
    folder.listing["entries"] = [entry("new").model_dump()]
    told = await asyncio.gather(watch.changes(), watch.changes())
    assert [[each.kind for each in found] for found in told] == [["create", "write"], []]
    for change, code in (
        ({"listing": {"entries": [], "truncated": True}}, "quota_exceeded"),
        ({"status": "Suspended"}, "session_busy"),
    ):
        vars(folder).update(change)
        with pytest.raises(SandpodError) as refused:
            await watch.changes()
        assert refused.value.code == code
    assert folder.uses == [True, False, False, False]
