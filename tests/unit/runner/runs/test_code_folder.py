"""The folder with the code of programs, where the disk does not take it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.runs.run import CodeFolder

ROOM = 4096


@contextmanager
def little_room() -> Iterator[None]:
    """No file may be larger than ROOM, so that the system takes a part of what is more, also of a log."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_code_of_which_the_disk_takes_a_part_is_refused_and_never_run(tmp_path: Path) -> None:
    folder = CodeFolder(str(tmp_path), {})
    with little_room():
        whole = folder.write("fits", "python", b"#" * ROOM)
        with pytest.raises(Refusal, match="larger than the sandbox allows"):
            folder.write("run", "python", b"#" * 2 * ROOM)
    assert Path(whole).stat().st_size == ROOM
    assert [path.name for path in Path(folder.path).iterdir()] == ["fits.py"]
