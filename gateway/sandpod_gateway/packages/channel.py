"""What each kind of packages gives the installer: one of it for Python, one for JavaScript."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from sandpod_gateway.api.package_results import Package, PackageInfo
from sandpod_gateway.backends.base import SandboxRecord


@dataclass(frozen=True, slots=True)
class Installed:
    """What came of an installation.

    Attributes:
        packages: What was asked for and what that depends on.
        note: What the caller should know of it, if anything.
    """

    packages: list[Package] = field(default_factory=list)
    note: str | None = None


class Channel(Protocol):
    """Packages of one kind. What is asked for is of the channel's own type; its text is the same for the same."""

    def parse(self, packages: list[str]) -> list[Any]:
        """Return what is asked for, each once and in order.

        Raises:
            SandpodError: invalid_argument, package_blocked.
        """
        ...

    async def listed(self, record: SandboxRecord) -> list[PackageInfo]:
        """Return the packages of a sandbox: those that were added, then the image's own.

        Raises:
            SandpodError: sandbox_lost, execution_failed, unsupported_language.
        """
        ...

    async def install(self, record: SandboxRecord, wanted: list[Any]) -> Installed:
        """Install what is not there yet.

        Raises:
            SandpodError: What is in the way.
        """
        ...
