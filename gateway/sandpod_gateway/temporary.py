"""One folder for all temporary files of a server, so that a server that was killed leaves nothing for good."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PREFIX: Final = "sandpod-server-"


@contextmanager
def own_folder() -> Iterator[None]:
    """Let `tempfile` use a folder of this process's own, which is removed at the end; remove those of killed servers.

    A server holds a lock on its folder, which the kernel lets go when the server ends in whatever way.
    """
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another server removes it too
            if left.lstat().st_uid == os.getuid():
                remove_unused(left)
    new = Path(tempfile.mkdtemp(prefix="sandpod-", dir=parent))
    with locked(new, fcntl.LOCK_EX):
        # Named only now: another server that starts at this moment must not take it for one that was left.
        folder = new.rename(new.with_name(new.name.replace("sandpod-", _PREFIX, 1)))
        tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = None
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path, kind: int) -> Iterator[int]:
    """Hold a lock (`fcntl.LOCK_EX` or its kind) on a folder, which must be no link, and give its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_unused(folder: Path) -> None:
    """Remove a folder, unless somebody holds a lock on it."""
    with contextlib.suppress(OSError), locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        shutil.rmtree(folder, ignore_errors=True)
