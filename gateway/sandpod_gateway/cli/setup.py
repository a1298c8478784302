"""`sandpod setup`: makes the environment with the libraries that local sandboxes have, Python's and JavaScript's.

Several may be started at once: one works and the others wait. What was interrupted is made anew by the next one, from
pip's cache. An environment that is no longer used is removed.
"""

import base64
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pip

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.local import environments
from sandpod_gateway.backends.local.environments import Environment
from sandpod_gateway.errors import StartError
from sandpod_gateway.packages.errors import ConflictError
from sandpod_gateway.packages.pip.packages import failure_of
from sandpod_gateway.settings import Settings
from sandpod_gateway.temporary import locked, remove_unused
from sandpod_runner.ipc.home import added_modules

_KEPT_LINES: Final = 200  # of pip's output, to find why it failed
_NPM_ERROR: Final = "npm error "  # begins each line of what npm says of its failure; the first line is a code
_SHOWN: Final = ("Downloading ", "Using cached ", "Installing ")
# matplotlib looks through all fonts at its first import, and says so in the middle of the first plot's output.
_FIND_FONTS: Final = (
    "import importlib.util\nif importlib.util.find_spec('matplotlib'):\n    import matplotlib.font_manager\n"
)
# An environment leaves out what a user has added. It goes before the environment's own, as everywhere else.
_ADDED: Final = "import site, sys; sys.flags.no_user_site or sys.path.insert(-1, site.getusersitepackages())\n"


def run(settings: Settings) -> None:
    """Make the environment unless it is there. Raises StartError: it can't be made; says why."""
    environment = environments.choose(settings.local) if settings.backend == "local" else None
    if environment is None:
        _say("These settings ask for no libraries: nothing to do.")
        return
    # Sandboxes that a root server starts have users of their own, which must be able to read it.
    os.umask(0o022)
    try:
        with _alone(environment.folder.parent) as lock:
            if not environment.is_ready:
                _make(environment, settings, lock)
            add_modules(environment, settings, lock)
            for folder in environment.folder.parent.iterdir():  # of other lists and other Pythons
                if folder != environment.folder:
                    remove_unused(folder)
    except OSError as error:
        message = f"The libraries can't be put into {environment.folder}: {error.strerror}."
        step = "Make room there, or choose another place with XDG_DATA_HOME."
        raise StartError(ErrorCode.BACKEND_ERROR, message, next_step=step) from error
    _say(f"Sandboxes have the libraries in {environment.folder}.")


def _say(text: str) -> None:
    sys.stderr.write(f"sandpod: {text}\n")


def _alone(folder: Path) -> AbstractContextManager[int]:
    """Wait until no other `sandpod setup` works in that folder, and give the descriptor that holds the lock.

    Programs that inherit it hold the lock too: one that outlives a killed `sandpod setup` still writes into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            pass
    except BlockingIOError:
        _say("Another sandpod setup is at work; waiting for it.")
    return locked(folder, fcntl.LOCK_EX)


def _make(environment: Environment, settings: Settings, lock: int) -> None:
    _say(f"Installing the libraries of sandboxes into {environment.folder}, once.")
    shutil.rmtree(environment.folder, ignore_errors=True)
    python = environments.own_python()
    command = [python, "-I", "-m", "venv", "--without-pip", str(environment.folder)]
    made = subprocess.run(command, pass_fds=[lock], capture_output=True, check=False, text=True)
    if made.returncode != 0:
        message = f"The Python at {python} can't make environments."
        cause = (made.stderr or made.stdout).strip().rpartition("\n")[2] or None
        step = "On Debian and Ubuntu install the package python3-venv."
        raise StartError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=step)
    find_added_packages(environment.folder)
    _add_pip(environment)
    _install(environment, settings, lock)
    config = environment.home / ".config/matplotlib"
    config.mkdir(parents=True)
    # Without the user's own fonts: sandboxes don't see them.
    variables = os.environ | {"HOME": str(environment.home), "MPLCONFIGDIR": str(config)}
    command = [str(environment.python), "-I", "-c", _FIND_FONTS]
    subprocess.run(command, env=variables, pass_fds=[lock], capture_output=True, check=False)
    environment.complete.touch()


def find_added_packages(environment: Path) -> None:
    """Let all programs of a Python environment find packages that are added to a sandbox, which lie in the home."""
    site_packages = next(environment.glob("lib/python3*/site-packages"))
    (site_packages / "added_packages.pth").write_text(_ADDED, encoding="utf-8")


def _add_pip(environment: Environment) -> None:
    """Copy the gateway's pip: the image has one too, and Debian's Python makes an environment with one in vain."""
    source = Path(pip.__file__).parent
    target = next(environment.folder.glob("lib/python3*/site-packages"))
    for folder in (source, *source.parent.glob("pip-*.dist-info")):
        shutil.copytree(folder, target / folder.name)
    program = environment.folder / "bin/pip"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(environment.python))} -m pip "$@"\n', encoding="utf-8")
    program.chmod(0o755)


def _install(environment: Environment, settings: Settings, lock: int) -> None:
    # The list is complete for the image's Python; a dependency that another version lacks is no reason to fail. The
    # user's own settings of pip apply: a mirror, a proxy, a cache.
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--retries", "1", "--progress-bar", "off"]
    command = [str(environment.python), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    variables = dict(os.environ)
    if "index_url" in settings.packages.model_fields_set:
        variables["PIP_INDEX_URL"] = settings.packages.index_url
    if settings.packages.ca_file is not None:
        variables["PIP_CERT"] = str(settings.packages.ca_file)
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        [*command, *options, "--requirement", str(environment.requirements)],
        env=variables,
        pass_fds=[lock],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            kept.append(line)
            if line.strip().startswith(_SHOWN):
                _say(line.strip()[:200])
    if process.returncode != 0:
        raise _failed("".join(kept))


def add_modules(environment: Environment, settings: Settings, lock: int) -> None:
    """Install the JavaScript libraries with the environment's Node.js unless they are there, or say why it failed."""
    node = environment.node
    if node is None or environment.lock_file is None or environment.modules.is_dir():
        return
    new = environment.folder / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    content = environment.lock_file.read_bytes()
    (new / "package-lock.json").write_bytes(content)
    wanted = json.loads(content)["packages"][""]
    (new / "package.json").write_text(json.dumps(wanted), encoding="utf-8")
    variables = dict(os.environ)
    if "registry_url" in settings.packages.npm.model_fields_set:
        (new / ".npmrc").touch(0o600)
        (new / ".npmrc").write_text(_npm_settings(settings.packages.npm.registry_url), encoding="utf-8")
    if settings.packages.ca_file is not None:
        variables["NODE_EXTRA_CA_CERTS"] = str(settings.packages.ca_file)
    npm = Path(node).parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    # No package's own scripts are run, as in the image.
    options = ["--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=500"]
    command = [node, "--use-system-ca", str(npm), "ci", "--prefix", str(new), *options, *retries]
    done = subprocess.run(
        command, env=variables, pass_fds=[lock], stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith(_NPM_ERROR)]
        cause = next((line.removeprefix(_NPM_ERROR) for line in errors[1:]), "npm does not say why")[:500]
        _say(f"JavaScript's libraries were not installed: {cause}. Run `sandpod setup` again to have them.")
        shutil.rmtree(new)
        return
    # `require` and `import` find what is in the home of programs, and from there what it depends on.
    for name in wanted["dependencies"]:
        link = Path(added_modules(str(environment.home))) / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(environment.modules / name)
    (new / "node_modules").rename(environment.modules)
    shutil.rmtree(new)


def _npm_settings(registry: str) -> str:
    """Return npm's own settings for a registry, whose address may have a user and a password."""
    url = urlsplit(registry)
    place = f"{url.hostname}{f':{url.port}' if url.port else ''}{url.path.rstrip('/')}/"
    pair = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    login = f"//{place}:_auth={base64.b64encode(pair.encode()).decode()}\n" if url.username else ""
    return f"registry={url.scheme}://{place}\n{login}"


def _failed(output: str) -> StartError:
    errors = [line.strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    meaning = failure_of(output, sys.maxsize)
    conflict = isinstance(meaning, ConflictError)
    known = "The list of libraries contradicts itself." if conflict else meaning.message
    unclear = conflict or meaning.code is ErrorCode.BACKEND_ERROR
    message = f"The libraries of sandboxes were not installed. {known}"
    cause = errors[-1][:500] if errors and unclear else None
    step = "Sandboxes work without them; run `sandpod setup` again to have them."
    return StartError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=step)
