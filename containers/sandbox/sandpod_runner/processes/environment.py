"""What programs find around them: environment, home, their share of the processors, and what runs each language.

Nothing of the runner's own environment reaches a program unless it is named here: no address or token of the cluster.
What can be run is found out once, at the start. A template's language is a command line with the code's file in it.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sandpod_runner.ipc.home import added_modules, added_packages
from sandpod_runner.protocol.messages import LANGUAGE, LANGUAGES

INHERITED = (
    *("PATH", "TZ", "LD_LIBRARY_PATH", "NODE_PATH", "PYTHONPATH"),
    # Where images of other languages say that these have their things.
    *("BUNDLE_APP_CONFIG", "CARGO_HOME", "DOTNET_ROOT", "GEM_HOME", "GOPATH", "GOROOT"),
    *("JAVA_HOME", "PERL5LIB", "RUSTUP_HOME", "R_HOME", "R_LIBS_SITE"),
)
"""What the image's author sets for programs."""

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_OFFLINE = {"PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "npm_config_fetch_retries": "0"}
"""Package managers fail at once instead of retrying for seconds."""

PATIENCE: Final = 10.0  # seconds in which a program must have said its version: the sandbox is not ready before
_MOST: Final = 64  # bytes of it
FILE: Final = "{file}"  # what stands in a command line for the code's file
MAX_LANGUAGES: Final = 16
_EXTENSION: Final = re.compile(r"(\.[A-Za-z0-9_]{1,15})?", re.ASCII)

PACKAGES: Final = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
"""The folder that the runner's own package lies in."""
_TRY: Final = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from sandpod_runner.python import context; from sandpod_runner.zygote import server; "
    "print('.'.join(map(str, sys.version_info[:3])))"
)


def build_environment(inherited: Mapping[str, str], *, tmp: str, cpus: int, offline: bool) -> dict[str, str]:
    """Return the environment that every program gets; a run's own variables come on top."""
    home = f"{tmp}/home"
    env = {
        "PATH": _DEFAULT_PATH,
        "HOME": home,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "TMPDIR": tmp,
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "npm_config_cache": f"{home}/.cache/npm",
        "npm_config_update_notifier": "false",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": f"{home}/.config/matplotlib",
        # Output is seen when it is written, and the workspace holds the user's files alone.
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Numeric libraries and Python count the node's cores and not the sandbox's share of them.
        "OMP_NUM_THREADS": str(cpus),
        "OPENBLAS_NUM_THREADS": str(cpus),
        "PYTHON_CPU_COUNT": str(cpus),  # os.cpu_count from Python 3.13 on
    }
    if offline:
        env |= _OFFLINE
    env |= {name: inherited[name] for name in INHERITED if inherited.get(name)}
    # Programs of added packages, and those of JavaScript.
    env["PATH"] = f"{home}/.local/bin:{env['PATH']}"
    env["NODE_PATH"] = ":".join(filter(None, (added_modules(home), env.get("NODE_PATH"))))
    return env


def prepare_home(env: Mapping[str, str], skeleton: str | None, packages: str | None = None) -> None:
    """Make the folders that the environment names as far as possible, with links to the image's ready-made files.

    Added packages go to `packages`, a folder that is there, or below the home.
    """
    _make(env["HOME"])
    if packages is not None:
        with contextlib.suppress(OSError):
            os.symlink(packages, f"{env['HOME']}/.local")
    named = [env[name] for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")]
    # Those of packages from the start: Python does not look again for a folder that it once did not find.
    for folder in (*named, added_packages(env["HOME"]), added_modules(env["HOME"])):
        _make(folder)
    if skeleton is None:
        return
    for folder, folders, files in os.walk(skeleton):
        target = os.path.join(env["HOME"], os.path.relpath(folder, skeleton))
        _make(target)
        for name in (*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))):
            link = os.path.join(target, name)
            if not os.path.lexists(link):
                os.symlink(os.path.join(folder, name), link)


def count_cpus() -> int:
    """Return the processors that this sandbox may use, at least 1: its cgroup's quota, or what the system says."""
    allowed = len(os.sched_getaffinity(0))
    version_2 = ("/sys/fs/cgroup/cpu.max",)
    version_1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    for paths in (version_2, version_1):
        with contextlib.suppress(OSError, ValueError):  # not this version, or no quota ("max", or a negative one)
            quota, period = map(int, " ".join(map(_read, paths)).split())
            if quota > 0:
                return max(1, min(allowed, -(-quota // period)))
    return allowed


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _make(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)


def find_program(names: tuple[str, ...], path: str) -> str | None:
    """Return the full path of the first of these programs that is on the PATH."""
    candidates = (os.path.join(folder, name) for name in names for folder in path.split(":"))
    return next((each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)), None)


@dataclass(frozen=True, slots=True)
class CommandLanguage:
    """A language that a command line runs."""

    name: str
    command: tuple[str, ...]
    extension: str = ""


@dataclass(frozen=True, slots=True)
class Languages:
    """What runs code here; None where there is none."""

    node: str | None
    shell: str | None
    commands: Mapping[str, CommandLanguage]
    versions: Mapping[str, str]  # all that can be run, by name; the version is empty where it is not known


def read_languages(text: str) -> tuple[CommandLanguage, ...]:
    """Return what a template adds: a JSON list of objects with name, command and extension. Raises ValueError."""
    rows = json.loads(text or "[]")
    if not isinstance(rows, list) or len(rows) > MAX_LANGUAGES:
        raise ValueError(f"it is a list of at most {MAX_LANGUAGES} languages")
    return tuple(_language(row) for row in rows)


def _language(row: Any) -> CommandLanguage:
    known: dict[str, Any] = row if isinstance(row, dict) else {}
    name, command, extension = (known.get(key, "") for key in ("name", "command", "extension"))
    is_command = isinstance(command, list) and all(map(_is_word, command)) and any(FILE in word for word in command[1:])
    is_name = isinstance(name, str) and LANGUAGE.fullmatch(name) and name not in LANGUAGES
    if not (is_command and is_name and isinstance(extension, str) and _EXTENSION.fullmatch(extension)):
        raise ValueError("a language is a name, a command with {file} in it, and an extension")
    return CommandLanguage(name, tuple(command), extension)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def find_python(name: str | None, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the interpreter that starts programs, and its version: empty if users' Python code can't run here."""
    if name is None:
        return sys.executable, ".".join(map(str, sys.version_info[:3]))
    program = find_program((name,), env["PATH"])
    version = _ask(env, program, "-s", "-c", _TRY, PACKAGES) if program is not None else ""
    return (program, version) if program is not None and version else (sys.executable, "")


def find_languages(python: str, wanted: tuple[CommandLanguage, ...], env: Mapping[str, str]) -> Languages:
    """Return what can be run here, with Python of this version; a language whose program is not there is left out."""
    path = env["PATH"]
    node, shell = find_program(("node",), path), find_program(("bash", "sh"), path)
    commands = {}
    for language in wanted:
        program = find_program(language.command[:1], path)
        if program is None:
            sys.stderr.write(f"there is no {language.name}: {language.command[0]} is not in this image\n")
        else:
            commands[language.name] = replace(language, command=(program, *language.command[1:]))
    versions = dict.fromkeys(commands, "")
    if python:
        versions["python"] = python
    if node is not None:
        versions["javascript"] = _ask(env, node, "--version").removeprefix("v")
        if not versions["javascript"]:
            sys.stderr.write(f"there is no javascript: {node} does not say its version\n")
            del versions["javascript"]
            node = None
    if shell is not None:
        versions["shell"] = _ask(env, shell, "-c", "echo $BASH_VERSION") or "POSIX"
    return Languages(node, shell, commands, versions)


def _ask(env: Mapping[str, str], program: str, *args: str) -> str:
    """Return what a program says first; nothing if it fails, or takes so long that it is killed."""
    deadline, answer = time.monotonic() + PATIENCE, b""
    try:
        process = subprocess.Popen(
            [program, *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0, process_group=0
        )
    except OSError:
        return ""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with process.stdout as pipe:
        while len(answer) < _MOST and select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = pipe.read(_MOST - len(answer))
            if not piece:
                break
            answer += piece
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    return answer.decode(errors="replace").strip() if status == 0 else ""
