"""What a program reports of a sandbox's packages, which is checked since a sandbox is untrusted, and its modules.

A sandbox's own Python runs it. The modules come as the run's input: nothing of them lies in the workspace.
"""

import functools
import io
import json
import zipfile
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.errors import Failure

MAX_PACKAGES: Final = 5000
PART: Final = 256 * 1024  # as in `inside/stream.py`
LINE: Final = 1024 * 1024  # most bytes of a report or a result
DETAIL: Final = 300  # most characters of a reason
_FOLDER: Final = Path(__file__).parent / "inside"
BOOTSTRAP: Final = _FOLDER / "bootstrap.py"
_PACKAGES: Final = ("sandpod_gateway", "sandpod_gateway/packages", "sandpod_gateway/packages/inside")
_FAILURES: Final = {"room": Failure.SANDBOX_FULL, "package": Failure.UNPACKING, "sandbox": Failure.SANDBOX_BROKEN}

Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9.+!_-]{1,128}$")]
Sha256 = Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")]


class Untrusted(BaseModel):
    """A part of what a sandbox, an index or a registry says; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class InstalledPackage(Untrusted):
    """A package in a sandbox, as `PackageInfo` has it."""

    version: Version
    sha256: Sha256 = None
    source: Literal["installed", "image"] = "image"


class ReportedFailure(Untrusted):
    """Why an installation failed and was undone: too little room, the content of a package, or the sandbox."""

    reason: Literal["room", "package", "sandbox"]
    detail: Annotated[str, Field(max_length=DETAIL)]

    def error(self) -> SandpodError:
        """Return it as callers get it."""
        return _FAILURES[self.reason].error(cause=self.detail)


class Report(Untrusted):
    """What a program of `inside` reports."""

    failure: ReportedFailure | None = None

    @property
    @abstractmethod
    def packages(self) -> dict[str, InstalledPackage]:
        """The packages that code in the sandbox can import, by name."""


S = TypeVar("S", bound=Report)


def opening(*, installing: bool) -> bytes:
    """Return the input of a program in a sandbox up to the order: its modules, and whether packages follow."""
    modules = _modules()
    return b"%d\n%b%b\n" % (len(modules), modules, json.dumps(installing).encode())


@functools.cache
def _modules() -> bytes:
    """Return the modules of `inside` as a zip file that Python imports from."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            archive.writestr(f"{package}/__init__.py", "")
        for path in _FOLDER.glob("[!_]*.py"):
            archive.write(path, f"{_PACKAGES[-1]}/{path.name}")
    return data.getvalue()
