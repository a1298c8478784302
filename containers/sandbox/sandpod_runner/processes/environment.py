"""What programs find around them: their environment, their home and their share of the processors.

Nothing of the runner's own environment reaches a program unless it is named here: no address or token of the cluster.
"""

import contextlib
import os
from collections.abc import Mapping

from sandpod_runner.ipc.home import added_modules, added_packages

INHERITED = (
    *("PATH", "TZ", "LD_LIBRARY_PATH", "NODE_PATH", "PYTHONPATH"),
    # Where images of other languages say that these have their things.
    *("BUNDLE_APP_CONFIG", "CARGO_HOME", "DOTNET_ROOT", "GEM_HOME", "GOPATH", "GOROOT"),
    *("JAVA_HOME", "PERL5LIB", "RUSTUP_HOME", "R_HOME", "R_LIBS_SITE"),
)
"""What the image's author sets for programs."""

_HOME = "home"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_OFFLINE = {"PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "npm_config_fetch_retries": "0"}
"""Package managers fail at once instead of retrying for seconds."""


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


def prepare_home(env: Mapping[str, str], skeleton: str | None, packages: str | None = None) -> None:
    """Make the folders that the environment names as far as possible, with links to the image's ready-made files.

    With `packages`, a folder that is there, added packages lie in it.
    """
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        _make(env[name])
    if packages is not None:
        with contextlib.suppress(OSError):
            os.symlink(packages, f"{env['HOME']}/.local")
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
