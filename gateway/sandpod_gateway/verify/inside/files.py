"""Where files can be written, how large these places are, and what of the node is mounted."""

import os
import time

from sandpod_gateway.verify.inside.tools import attempt, tell, text_of

SKIPPED = ("/proc", "/sys", "/workspace", "/tmp", "/dev/shm", "/packages")
PLACES = (
    "/",
    "/etc",
    "/usr",
    "/usr/bin",
    "/bin",
    "/lib",
    "/opt",
    "/root",
    "/home",
    "/var",
    "/var/tmp",
    "/run",
    "/dev",
    "/mnt",
)
FILES = ("/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/bin/sh", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
NODE = (
    *("/host", "/rootfs", "/hostfs", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/etcd"),
    *("/etc/kubernetes", "/root/.kube", "/root/.ssh", "/root/.aws", "/etc/cni", "/var/log/pods", "/boot"),
)
SECONDS = 10.0
MOST = 20_000  # folders
ENOUGH = 20  # that can be written to: more tell no more


def write(folder: str) -> None:
    """Make a file and remove it."""
    path = os.path.join(folder, ".sandpod-verify-%d" % os.getpid())
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    os.unlink(path)


def writable() -> "tuple[list[str], int, bool]":
    """Return folders in which a file can be made, how many were tried, and whether those were all."""
    end, tried, found = time.monotonic() + SECONDS, 0, []
    for folder, names, _ in os.walk("/", onerror=lambda _: None):
        names[:] = [name for name in names if os.path.join(folder, name) not in SKIPPED]
        tried += 1
        # Most folders are nobody's to write to: one system call tells.
        if (os.access(folder, os.W_OK) or folder in PLACES) and attempt(write, folder) == "done":
            found.append(folder)
        if tried >= MOST or len(found) >= ENOUGH or time.monotonic() > end:
            return found, tried, False
    return found, tried, True


def mounts() -> "list[dict[str, str]]":
    """Return what is mounted: where, of which kind, and which part of it."""
    found = []
    for line in text_of("/proc/self/mountinfo").splitlines()[:200]:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) > 5 and kind[0]:
            found.append({"at": fields[4], "root": fields[3], "options": fields[5], "kind": kind[0], "source": kind[1]})
    return found


def sizes() -> "dict[str, int]":
    """Return how much each place for files holds, bytes."""
    found = {}
    for place in ("/workspace", "/tmp", "/dev/shm", "/packages"):
        try:
            seen = os.statvfs(place)
        except OSError:
            continue
        found[place] = seen.f_frsize * seen.f_blocks
    return found


def main() -> None:
    """Tell it."""
    found, tried, whole = writable()
    tell(
        {
            "writable": found,
            "folders": tried,
            "whole": whole,
            "files": {path: attempt(lambda path=path: os.close(os.open(path, os.O_WRONLY))) for path in FILES},
            "remount": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
            "node": [
                path
                for path in NODE
                if os.path.isdir(path) and attempt(os.listdir, path) == "done" and os.listdir(path)
            ],
            "mounts": mounts(),
            "sizes": sizes(),
        }
    )


main()
