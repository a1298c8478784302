"""What one program can take: processes, open files, room for files, and what the kernel says of its bounds."""

import os
import resource
import signal
import time

from sandpod_gateway.verify.inside.tools import arguments, tell, text_of

BLOCK = b"x" * (1 << 20)
FOLDERS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids")
NAMES = ("cpu.max", "memory.max", "pids.max", "cpu.cfs_quota_us", "memory.limit_in_bytes")


def fork(most: int) -> "dict[str, object]":
    """Start processes that do nothing until it is refused, or there are `most` of them; end them all."""
    started: list[int] = []
    why = ""
    try:
        while len(started) < most:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            started.append(pid)
    except OSError as error:
        why = error.strerror or "refused"
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    for pid in started:
        os.waitpid(pid, 0)
    return {"started": len(started), "most": most, "why": why}


def open_files(most: int) -> "dict[str, object]":
    """Open files until it is refused, or there are `most` of them; close them all."""
    kept: list[int] = []
    why = ""
    try:
        while len(kept) < most:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        why = error.strerror or "refused"
    for fd in kept:
        os.close(fd)
    return {"opened": len(kept), "most": most, "why": why}


def fill(folder: str, most: int) -> "dict[str, object]":
    """Write a file until it is refused, or `most` bytes are written; remove it."""
    path, written, why = folder + "/sandpod-verify-fill", 0, ""
    try:
        with open(path, "wb", 0) as file:
            while written < most:
                written += file.write(BLOCK)
    except OSError as error:
        why = error.strerror or "refused"
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass
    return {"written": written, "most": most, "why": why}


def main() -> None:
    """Tell it."""
    wanted = arguments()
    groups = {f + "/" + n: text_of(f + "/" + n).strip() for f in FOLDERS for n in NAMES if os.path.exists(f + "/" + n)}
    tell(
        {
            "groups": groups,
            "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
            "files": open_files(wanted["files"]),
            "processes": fork(wanted["processes"]),
            "folders": {folder: fill(folder, most) for folder, most in wanted["folders"].items()},
        }
    )


main()
