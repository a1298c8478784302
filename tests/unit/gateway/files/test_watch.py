"""What has changed in a folder between two looks at it."""

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


async def test_a_folder_that_holds_too_much_is_not_watched() -> None:
    class Full:
        truncated = False

        async def ask(self, *_: Any) -> tuple[str, Frame]:
            return "sbx", Frame({"t": "reply", "entries": [], "truncated": self.truncated}, b"")

    files: Any = Full()
    watch = Watch(files, "ann", "sbx", ".", recursive=True)
    assert await watch.changes() == await watch.changes() == []
    files.truncated = True
    with pytest.raises(SandpodError) as refused:
        await watch.changes()
    assert refused.value.code == "quota_exceeded"
