"""What programs see of the world: their environment, their home and their share of the processors.

An allow-list: nothing of the runner's own environment reaches a program unless it is named here, so that no address,
token or setting of the cluster does.
"""

import contextlib
import os
from collections.abc import Mapping

from sandpod_runner.ipc.home import added_modules, added_packages

INHERITED = (
    "PATH",
    "TZ",
    "NODE_PATH",
    "PYTHONPATH",
    # Where images of other languages say that these have their things.
    "BUNDLE_APP_CONFIG",
    "CARGO_HOME",
    "DOTNET_ROOT",
    "GEM_HOME",
    "GOPATH",
    "GOROOT",
    "JAVA_HOME",
    "LD_LIBRARY_PATH",
    "PERL5LIB",
    "RUSTUP_HOME",
    "R_HOME",
    "R_LIBS_SITE",
)
"""What the image's author sets for programs."""

_HOME = "home"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


_OFFLINE = {"PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "npm_config_fetch_retries": "0"}
"""Package managers fail at once in place of trying again for seconds."""


def build_environment(inherited: Mapping[str, str], *, tmp: str, cpus: int, offline: bool) -> dict[str, str]:
    """Return the environment that every program gets; a run's own variables come on top."""
    home = f"{tmp}/{_HOME}"
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


def prepare_home(env: Mapping[str, str], skeleton: str | None) -> None:
    """Make the folders that the environment names, with links to the image's ready-made files in them.

    What can't be made is left out: a program then sees its own library's message about it.
    """
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        _make(env[name])
    # There from the start: Python does not look again for a folder that it once did not find.
    _make(added_packages(env["HOME"]))
    _make(added_modules(env["HOME"]))
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
    for path, read in (("/sys/fs/cgroup/cpu.max", _quota_v2), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", _quota_v1)):
        try:
            quota = read(path)
        except (OSError, ValueError):
            continue
        if quota is not None:
            return max(1, min(allowed, -int(-quota // 1)))
    return allowed


def _quota_v2(path: str) -> float | None:
    with open(path) as file:
        quota, period = file.read().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(path: str) -> float | None:
    with open(path) as file:
        quota = int(file.read())
    with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
        period = int(file.read())
    return None if quota <= 0 else quota / period


def _make(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)


def find_program(names: tuple[str, ...], path: str) -> str | None:
    """Return the full path of the first of these programs that is on the PATH."""
    for name in names:
        for folder in path.split(":"):
            candidate = os.path.join(folder, name)
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
    return None
