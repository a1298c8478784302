"""What to do about a run that failed, by how it ended and by what the program wrote.

Hints are literal: a model that makes the call that one names can go on.
"""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.request import RunRequest
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_runner.protocol import messages as protocol

_BY_OUTCOME: Final[dict[str, str]] = {
    Outcome.TIMEOUT: "The program was stopped at its timeout: pass a longer one as `timeout`, or do less in one run.",
    Outcome.OUT_OF_MEMORY: "Work on the data in parts.",
    Outcome.OUTPUT_LIMIT: "Write large output to a file.",
    Outcome.SANDBOX_LOST: "Its files are lost, unless get_sandbox tells that it is Ready or Suspended; a call without "
    "its handle gets a sandbox that works.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a program ran."""

    sandbox: str | None  # its handle; None where it was thrown away after the run
    template: str
    network: str = NETWORK_NONE
    networks: tuple[str, ...] | None = None  # the profiles that its template has; None where that is not known
    context: bool = False


async def find_hint(
    sandboxes: Sandboxes,
    record: SandboxRecord,
    recorder: Recorder,
    ended: Ended,
    request: RunRequest | None = None,
    *,
    fresh: bool = False,
) -> str | None:
    """Return a few sentences for the caller, or None; `request` is that of the run, where this call started it."""
    stdout, stderr = (stream.read().text for stream in recorder.streams.values())
    command = request.code if request is not None and request.language == Language.SHELL else ""
    silent = not stdout and not stderr and record.network == NETWORK_NONE and downloads(command)
    networks = None
    if silent or NO_NETWORK.search(stderr):
        with contextlib.suppress(SandpodError):
            templates = await sandboxes.templates()
            networks = next((each.networks for each in templates if each.name == record.template), None)
    place = Place(
        sandbox=None if fresh else record.name,
        template=record.template,
        network=record.network,
        networks=networks,
        context=ended.context is not None,
    )
    if silent and ended.outcome in {Outcome.OK, Outcome.ERROR}:
        return about_network(place)
    if ended.outcome == Outcome.OK and place.context:
        match = _NOT_FOUND_BY_PIP.search(f"{stdout}\n{stderr}")  # a cell does not fail for its `!pip` or `%pip`
        return _about_pip(match, place) if match is not None else None
    return hint_for(ended.outcome, ended.detail, stderr, place)


def hint_for(outcome: str, detail: str | None, stderr: str, place: Place) -> str | None:
    """Return a few sentences for the caller, or None; `detail` is the runner's own about the end."""
    step = from_stderr(stderr, place) if outcome == Outcome.ERROR else _BY_OUTCOME.get(outcome)
    return " ".join(filter(None, (detail, step))) or None


def about_dropped(count: int) -> str | None:
    """Return a sentence on what a run showed that is not in its result, or None."""
    if count == 0:
        return None
    things = "1 thing that it showed was" if count == 1 else f"{count} things that it showed were"
    return f"{things} too much to come back here: write such things to files, or show less."


def about_rest(run: str, written: int) -> str:
    """Return where the rest of a run's output is that was cut, of so many bytes in both streams."""
    cut = f'The output was cut: read_run(run_id="{run}") returns'
    if written <= protocol.KEPT_OUTPUT:
        return f"{cut} all of it, in parts."
    return f"{cut} the last {protocol.KEPT_OUTPUT // 1000} kB. Write large output to a file."


NO_NETWORK: Final = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|ENETUNREACH|EAI_AGAIN"
    r"|getaddrinfo ENOTFOUND|Could not resolve host|Connection timed out|connect ETIMEDOUT|CONNECT_TIMEOUT"
    r"|ConnectTimeout|(?:TimeoutError:|urlopen error) timed out|unable to resolve host address"
)
_INSTALLER: Final = "Call install_packages in place of npm or pip; it needs no network."
_NEEDS_NETWORK: Final = frozenset({"curl", "wget", "git", "ssh", "apt", "apt-get"})


def from_stderr(stderr: str, place: Place) -> str | None:
    """Return what to do about a failure by what the program wrote, or None."""
    for pattern, hint in _CAUSES:  # `re` keeps what it has compiled
        if (match := re.search(pattern, stderr)) is not None:
            return hint if isinstance(hint, str) else hint(match, place)
    return None


def downloads(command: str) -> bool:
    """Return whether a shell command fetches something from elsewhere, which may fail without a word: `curl -s`."""
    return _DOWNLOADER.search(command) is not None and _OWN_HOST.search(command) is None


def about_network(place: Place) -> str:
    """Return what to do about an address that a program did not reach."""
    own = f'This sandbox has the network profile "{place.network}", which may not open that.'
    if place.network == NETWORK_NONE:
        own = "This sandbox has no network."
    if place.networks is None:
        return f"{own} sandpod://capabilities lists templates' network profiles; create_sandbox takes one."
    others = [name for name in place.networks if name not in {NETWORK_NONE, place.network}]
    if not others:
        ways = "bring data in with write_file or upload_file, and packages with install_packages"
        return f"{own} Its template has no other profile: {ways}."
    call = f'create_sandbox(template="{place.template}", network="{others[0]}")'
    return f"{own} Other profiles of its template: {', '.join(others)}; call {call} and run it there."


# Modules whose package is called something else.
_PACKAGES: Final = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def _about_python_module(match: re.Match[str], place: Place) -> str:
    name = match[1].partition(".")[0]
    package = _PACKAGES.get(name, name.replace("_", "-"))
    return f"{_about_missing(match[1], package, place)} The package may have another name than the module."


def _about_node_module(match: re.Match[str], place: Place) -> str:
    module = match[1]
    if module.startswith((".", "/")):
        return f"There is no {module!r}: list_files tells what is there; a program's paths begin in its own folder."
    parts = module.split("/")
    package = "/".join(parts[:2] if module.startswith("@") else parts[:1])
    return _about_missing(module, package, place, Language.JAVASCRIPT)


def _about_missing(module: str, package: str, place: Place, language: Language = Language.PYTHON) -> str:
    if place.sandbox is None:
        return f"{module!r} is not in a fresh sandbox: run it again with packages={json.dumps([package])}."
    return f"{module!r} is not in this sandbox: call {_install([package], place, language)} and run it again."


def _install(packages: list[str], place: Place, language: Language = Language.PYTHON) -> str:
    which = "" if language == Language.PYTHON else f', language="{language}"'
    return f'install_packages(packages={json.dumps(packages)}{which}, sandbox="{place.sandbox}")'


def _about_pip(match: re.Match[str], place: Place) -> str:
    words = [word.strip("'\"") for word in match[1].split() if word not in _PIP_OPTIONS]
    named = [word for word in words if _REQUIREMENT.fullmatch(word)]
    if not named or named != words:
        return _INSTALLER
    if place.sandbox is None:
        return f"pip does not work here: run it again without it, with packages={json.dumps(named)}."
    return f"Call {_install(named, place)} in place of pip; it needs no network."


def _about_name(match: re.Match[str], place: Place) -> str | None:
    if place.context:
        return None
    kept = "Variables of earlier calls are kept only in a context"
    return f"{match[1] or match[2]} is not defined here. {kept}: pass the same `context` to all calls that share them."


def _about_program(name: str, place: Place) -> str:
    if name in {"pip", "pip3", "npm"}:
        return _INSTALLER
    hint = f"There is no program {name!r} here, and programs can't be installed: use a library, or code of your own."
    return f"{hint} {about_network(place)}" if name in _NEEDS_NETWORK else hint


def _about_file(match: re.Match[str], place: Place) -> str:
    path = next(group for group in match.groups() if group)
    if "/" not in path and "_execute_child" in match.string:  # of Python's subprocess
        return _about_program(path, place)
    return f"There is no {path!r}: list_files tells what is there. Relative paths begin in /workspace, or in `cwd`."


_DOWNLOADER: Final = re.compile(r"\b(?:curl|wget)\b")
_OWN_HOST: Final = re.compile(r"\blocalhost\b|\b127\.\d|\[::1\]")
_PIP_OPTIONS: Final = frozenset({"-q", "-qq", "--quiet", "-U", "--upgrade", "--user", "--break-system-packages"})
_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?:\[[A-Za-z0-9._,-]{1,99}\])?(?:[=<>!~]=?[\w.*,<>=!~]{1,40})?"
)
_LEAVE_BACKEND: Final = "There is no display: leave matplotlib's backend as it is, and figures come back as images."
_NO_DISPLAY: Final = re.compile(
    r"no display name and no \$DISPLAY|Missing X server or \$DISPLAY|X connection failed|KeyError: 'DISPLAY'"
    r"|(?:[Cc]ould not connect to|[Cc]an(?:no|')t open|Unable to open|Bad) display|libtk8\.\d\.so"
    r"|which requires the '\w{1,20}' interactive framework|import any of the following Qt binding modules"
)
_NO_FILE: Final = re.compile(
    r"(?m)^FileNotFoundError: .{0,60}'([^'\n]{1,200})'|ENOENT: no such file or directory, \w+ '([^'\n]{1,200})'"
    r"|^\w{1,20}: (?:cannot \w{1,20} )?'?([^':\n]{1,200})'?: No such file or directory"
)
_NOT_FOUND_BY_PIP: Final = re.compile(r"ERROR: No matching distribution found for ([^\s;]{1,150})")

_Hint = str | Callable[[re.Match[str], Place], str | None]
# What a program writes and what to do then, the more telling first.
_CAUSES: Final[tuple[tuple[str | re.Pattern[str], _Hint], ...]] = (
    (r"No module named '(?:_?tkinter|turtle)'", _LEAVE_BACKEND),
    (r"ModuleNotFoundError: No module named '([\w.]{1,100})'", _about_python_module),
    (r"Cannot find (?:module|package) '([^'\n]{1,100})'", _about_node_module),
    (
        r"Image export .{0,40}requires the Kaleido package",
        "A picture of a plotly figure takes a browser: show the figure, and it is kept as a page in the workspace.",
    ),
    (_NO_DISPLAY, _LEAVE_BACKEND),
    # A traceback of the interpreter's, which shows the line that it does not understand.
    (r"(?m)^ +[!%](?:python3? -m )?pip3? install ([^\n]{1,500})\n(?:.*\n)?SyntaxError", _about_pip),
    (_NOT_FOUND_BY_PIP, _about_pip),
    (r"(?m)^npm (?:error|ERR!)", _INSTALLER),
    (
        r"(?:^|[ /])(?:\w{1,20}: (?:line )?\d+: )([\w.+-]{1,50}): (?:command )?not found",
        lambda match, place: _about_program(match[1], place),
    ),
    (NO_NETWORK, lambda _, place: about_network(place)),
    (r"(?m)^NameError: name '(\w{1,100})' is not defined|^ReferenceError: (\w{1,100}) is not defined", _about_name),
    (_NO_FILE, _about_file),
    (r"Read-only file system|EROFS", "That path can't be written to: write to /workspace or /tmp."),
    (
        r"No space left on device|ENOSPC",
        "The folder that it wrote to is full: delete what is not needed there, or write less.",
    ),
)
