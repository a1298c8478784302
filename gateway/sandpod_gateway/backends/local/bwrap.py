"""The bubblewrap command line of a local sandbox: all that its programs can see, and nothing else.

It is pure: what the machine looks like comes from `host.py`, file descriptors from the caller. This is the file to read
for what a local sandbox protects; hardening is not an option here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sandpod_api.names import ENV_LANGUAGES, ENV_PACKAGES, ENV_PACKAGES_BYTES, ENV_PREIMPORT, PACKAGES, WORKSPACE
from sandpod_gateway.backends.local.settings import LocalSettings

UID: Final = 1000
"""User and group of all programs, inside."""
HOME: Final = "/opt/sandpod"
"""Where the runner and the languages' commands are, inside."""

# What programs look up about users and names. The host's own files would show who its users are.
FILES: Final = {
    "/etc/passwd": f"sandbox:x:{UID}:{UID}:Sandbox:{WORKSPACE}:/bin/bash\n",
    "/etc/group": f"sandbox:x:{UID}:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}

WORKSPACE_LINKS: Final = ("/app/results", "/home/user", "/mnt/data")
"""Where programs for other sandboxes look for their files. The sandbox image has the same links."""


class Bind(NamedTuple):
    """A file or folder of the host that is shown, read-only: its absolute path there, and in the sandbox."""

    source: str
    dest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What of the host a sandbox sees."""

    binds: tuple[Bind, ...]  # shown read-only
    symlinks: tuple[tuple[str, str], ...] = ()  # made in the sandbox, as (target, path)
    path: str  # its PATH
    node_path: str = ""  # its NODE_PATH
    skeleton: str = ""  # a folder of files for the home of programs, as seen from inside; empty for none


def command(
    executable: str, view: View, settings: LocalSettings, descriptors: Mapping[str, int], program: Sequence[str]
) -> list[str]:
    """Return the argument list by which bubblewrap starts a program, as seen from inside, as PID 1 of a new sandbox.

    It must inherit the descriptors: `seccomp` has the filter program, `info` gets a JSON object with the sandbox's
    process id, and each path of `FILES` has its content.
    """
    packages = {ENV_PACKAGES: PACKAGES, ENV_PACKAGES_BYTES: str(settings.packages_bytes)}
    variables = (environment(view, settings) | packages).items()
    return [
        executable,
        # Not only "--unshare-all", which goes on without a user namespace where there is none.
        "--unshare-user",
        "--unshare-all",
        "--disable-userns",
        *("--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"),
        *("--cap-drop", "ALL"),
        *("--seccomp", str(descriptors["seccomp"])),
        # Without a terminal of the gateway's to type into.
        "--new-session",
        "--die-with-parent",
        # The runner reaps, and as PID 1 it can't be killed from inside.
        "--as-pid-1",
        *("--info-fd", str(descriptors["info"])),
        "--clearenv",
        *_file_system(view, settings, descriptors),
        *(word for name, value in variables for word in ("--setenv", name, value)),
        *("--chdir", WORKSPACE, "--"),
        *program,
    ]


def _file_system(view: View, settings: LocalSettings, descriptors: Mapping[str, int]) -> list[str]:
    temporary = ("--perms", "1777", "--size", str(settings.tmp_bytes), "--tmpfs")
    arguments = ["--proc", "/proc", "--dev", "/dev"]
    arguments += [*temporary, "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - a path inside
    # Before the rest: the Python that sandboxes run may be installed below /tmp.
    arguments += [*temporary, "/tmp", "--symlink", "/tmp", "/var/tmp"]  # noqa: S108 - paths inside
    for path, size in ((WORKSPACE, settings.workspace_bytes), (PACKAGES, settings.packages_bytes)):
        arguments += ["--perms", "0755", "--size", str(size), "--tmpfs", path]
    for bind in view.binds:
        arguments += ["--ro-bind", bind.source, bind.dest]
    for target, path in view.symlinks:
        arguments += ["--symlink", target, path]
    for path in WORKSPACE_LINKS:
        if not any(_overlap(path, bind.dest) for bind in view.binds):
            arguments += ["--symlink", WORKSPACE, path]
    for path in FILES:
        arguments += ["--perms", "0444", "--file", str(descriptors[path]), path]
    # Last: the root is a tmpfs of bubblewrap's own, without a size.
    return [*arguments, "--remount-ro", "/"]


def _overlap(path: str, other: str) -> bool:
    """Return whether one of two paths is the other or lies below it."""
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")


def environment(view: View, settings: LocalSettings) -> dict[str, str]:
    """Return the whole environment of the runner, which makes its programs' own: nothing of the gateway's is in it."""
    languages = [each.to_wire() for each in settings.languages]
    variables = {
        "PATH": view.path,
        "LANG": "C.UTF-8",
        "NODE_PATH": view.node_path,
        "SANDPOD_SKELETON": view.skeleton,
        "SANDPOD_MEMORY_LIMIT": str(settings.memory_bytes),
        "SANDPOD_PROCESSES": str(settings.processes),
        "SANDPOD_OPEN_FILES": str(settings.open_files),
        ENV_PREIMPORT: ",".join(settings.preimport),
        ENV_LANGUAGES: json.dumps(languages) if languages else "",
    }
    return {name: value for name, value in variables.items() if value}
