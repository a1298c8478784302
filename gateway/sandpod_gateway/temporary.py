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
    _remove_left(parent)
    new = Path(tempfile.mkdtemp(prefix="sandpod-", dir=parent))
    descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Named only now: another server that starts at this moment must not take it for one that was left.
    folder = new.rename(new.with_name(new.name.replace("sandpod-", _PREFIX, 1)))
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = None
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is no folder, another user's, or another server removes it too
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
