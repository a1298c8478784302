"""What to do about a failed run, where that can be told from its end. Pure; called through `places.py`.

What a hint says is literally so: a model that makes the call it names gets on. `tests/contract/test_hints.py` does.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.api.run_results import Outcome
from sandpod_runner.protocol import messages as protocol

_MISSING_PYTHON: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,100})'")
_MISSING_NODE: Final = re.compile(r"Cannot find (?:module|package) '([^'\n]{1,100})'")
_NO_NETWORK: Final = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|ENETUNREACH|EAI_AGAIN"
    r"|getaddrinfo ENOTFOUND|Could not resolve host|Connection timed out|connect ETIMEDOUT|CONNECT_TIMEOUT"
    r"|ConnectTimeout|(?:TimeoutError:|urlopen error) timed out"
)

# What a program writes and what to do then, the more telling first; None where that depends on the sandbox.
_BY_CAUSE: Final[tuple[tuple[re.Pattern[str], str | None], ...]] = (
    (
        re.compile(r"Image export .{0,40}requires the Kaleido package"),
        "A picture of a plotly figure takes a browser: show the figure, and it comes back as a page and as its data.",
    ),
    (
        re.compile(
            r"no display name and no \$DISPLAY|Missing X server or \$DISPLAY|X connection failed|KeyError: 'DISPLAY'"
            r"|(?:[Cc]ould not connect to|[Cc]an(?:no|')t open|Unable to open|Bad) display|libtk8\.\d\.so"
            r"|which requires the '\w{1,20}' interactive framework|import any of the following Qt binding modules"
        ),
        "There is no display: leave matplotlib's backend as it is, and figures come back as images.",
    ),
    (
        re.compile(
            r"^npm (?:error|ERR!)|(?:npm|pip3?): (?:command )?not found|ERROR: No matching distribution found for ",
            re.MULTILINE,
        ),
        "Call install_packages in place of npm or pip; it needs no network.",
    ),
    (_NO_NETWORK, None),
    (
        re.compile(r"Read-only file system|EROFS"),
        "That path can't be written to: write to /workspace or /tmp.",
    ),
    (
        re.compile(r"No space left on device|ENOSPC"),
        "The folder that it wrote to is full: delete what is not needed there, or write less.",
    ),
)

_BY_OUTCOME: Final = {
    Outcome.TIMEOUT: "The program was stopped at its timeout: pass a longer one as `timeout`, or do less in one run.",
    Outcome.OUT_OF_MEMORY: "Work on the data in parts.",
    Outcome.OUTPUT_LIMIT: "Write large output to a file.",
    Outcome.SANDBOX_LOST: "Its files are lost, unless get_sandbox tells that it is Suspended; a call without its "
    "handle gets a sandbox that works.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a program ran.

    Attributes:
        sandbox: The sandbox's handle; None where it was thrown away after the run.
        template: The name of its template.
        network: Its network profile.
        networks: The profiles that its template has; None where that is not known.
    """

    sandbox: str | None
    template: str
    network: str = NETWORK_NONE
    networks: tuple[str, ...] | None = None


def hint_for(outcome: str, detail: str | None, stderr: str, place: Place) -> str | None:
    """Return a few sentences for the caller, or None.

    Args:
        outcome: How the run ended.
        detail: What the runner said of the end.
        stderr: What the program wrote there, as far as it was kept.
        place: Where it ran.
    """
    if outcome in _BY_OUTCOME:
        return " ".join(filter(None, (detail, _BY_OUTCOME[Outcome(outcome)])))
    if outcome != Outcome.ERROR:
        return detail
    return detail or _from_stderr(stderr, place)


def is_about_network(stderr: str) -> bool:
    """Tell whether a program failed for want of a network, so that the profiles of its template matter."""
    return _NO_NETWORK.search(stderr) is not None


def about_dropped(count: int) -> str | None:
    """Return a sentence on what a run showed that is not in its result, or None."""
    if count == 0:
        return None
    things = "1 thing that it showed was" if count == 1 else f"{count} things that it showed were"
    return f"{things} too much to come back here: write such things to files, or show less."


def about_rest(run: str, written: int) -> str:
    """Return where the rest of an output is that was cut.

    Args:
        run: The run's name.
        written: Bytes of both streams.
    """
    if written <= protocol.KEPT_OUTPUT:
        return f'The output was cut: read_run(run_id="{run}") returns all of it, in parts.'
    return (
        f'The output was cut: read_run(run_id="{run}") returns the last {protocol.KEPT_OUTPUT // 1000} kB. Write large '
        "output to a file."
    )


def _from_stderr(stderr: str, place: Place) -> str | None:
    if (missing := _MISSING_PYTHON.search(stderr)) is not None:
        return _about_module(missing[1], place)
    if (missing := _MISSING_NODE.search(stderr)) is not None:
        return _about_node_module(missing[1], place)
    for cause, hint in _BY_CAUSE:
        if cause.search(stderr):
            return hint or _about_network(place)
    return None


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


def _about_module(module: str, place: Place) -> str:
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name.replace("_", "-"))
    return f"{_about_missing(module, package, place)} The package may have another name than the module."


def _about_node_module(module: str, place: Place) -> str:
    if module.startswith((".", "/")):
        return f"There is no {module!r}: list_files tells what is there; a program's paths begin in its own folder."
    parts = module.split("/")
    package = "/".join(parts[:2] if module.startswith("@") else parts[:1])
    return _about_missing(module, package, place, ', language="javascript"')


def _about_missing(module: str, package: str, place: Place, language: str = "") -> str:
    packages = f"packages={json.dumps([package])}"
    if place.sandbox is None:
        return f"{module!r} is not in a fresh sandbox: run it again with {packages}."
    call = f'install_packages({packages}{language}, sandbox="{place.sandbox}")'
    return f"{module!r} is not in this sandbox: call {call} and run it again."


def _about_network(place: Place) -> str:
    own = (
        "This sandbox has no network."
        if place.network == NETWORK_NONE
        else f'This sandbox has the network profile "{place.network}", which may not open that.'
    )
    if place.networks is None:
        return f"{own} sandpod://capabilities lists templates' network profiles; create_sandbox takes one."
    others = [name for name in place.networks if name not in {NETWORK_NONE, place.network}]
    if not others:
        return (
            f"{own} Its template has no other profile: bring data in with write_file or upload_file, and packages with "
            "install_packages."
        )
    call = f'create_sandbox(template="{place.template}", network="{others[0]}")'
    return f"{own} Other profiles of its template: {', '.join(others)}; call {call} and run it there."
