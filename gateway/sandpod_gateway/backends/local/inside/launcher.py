"""Drops a root gateway's rights before bubblewrap starts, and makes files below closed folders reachable to it.

A script that is started as root only, and ends by becoming bubblewrap. A sandbox of root's own would have no process
limit (the kernel sets none for root) and would own root's files, so each gets a uid that nobody has. That uid can't
reach a Python below /root: what bubblewrap needs is bound below /tmp first, in mounts that only this process sees.
Standard library alone; it must not import the gateway.

    launcher.py UID SOURCE... -- COMMAND...     SOURCE number n is at STAGE/n for the command
"""

import ctypes
import os
import sys
from pathlib import Path

STAGE = Path("/tmp")  # noqa: S108 - covered by a tmpfs of this process's own before anything is put there

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _check(result, f"can't mount {target}")


def stage(sources: list[str]) -> None:
    """Bind each source below STAGE, in a mount namespace of this process's own."""
    _check(_libc.unshare(_CLONE_NEWNS), "can't make a mount namespace")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE, None)
    # Opened before the tmpfs covers STAGE: a source may lie below it.
    opened = [(os.open(source, os.O_PATH | os.O_CLOEXEC), Path(source).is_dir()) for source in sources]
    _mount("sandpod", str(STAGE), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=64k")
    for index, (descriptor, is_directory) in enumerate(opened):
        place = STAGE / str(index)
        if is_directory:
            place.mkdir()
        else:
            place.touch()
        _mount(f"/proc/self/fd/{descriptor}", str(place), None, _MS_BIND | _MS_REC, None)
        os.close(descriptor)


def drop(uid: int) -> None:
    """Become a user without any rights."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main() -> None:
    """Stage, drop, and become the command."""
    uid, *rest = sys.argv[1:]
    split = rest.index("--")
    try:
        stage(rest[:split])
        drop(int(uid))
        os.chdir("/")
        os.execv(rest[split + 1], rest[split + 1 :])  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"sandpod: {error}")


if __name__ == "__main__":
    main()
