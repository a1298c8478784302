"""What one call asks for: how much it may be, and which packages may be installed. Pure."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.settings import NpmSettings, PackageSettings

MAX_REQUESTED: Final = 50
MAX_LENGTH: Final = 200
"""Characters of one package's name and version."""

R = TypeVar("R")


def parse_each(packages: list[str], parse: Callable[[str], R]) -> list[R]:
    """Return what is asked for, each once and in order of its name.

    Raises:
        SandpodError: invalid_argument: none or too many, or what `parse` raises.
    """
    if not 1 <= len(packages) <= MAX_REQUESTED:
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            f"An installation is of 1 to {MAX_REQUESTED} packages.",
            next_step="Name them, or install them in several calls.",
        )
    return sorted({str(each): each for each in (parse(text.strip()) for text in packages)}.values(), key=str)


class NameRules:
    """Which names may be asked for, and which may never be installed.

    Args:
        settings: The lists, as patterns.
        normal: Makes names and patterns comparable.
    """

    def __init__(self, settings: PackageSettings | NpmSettings, normal: Callable[[str], str]) -> None:
        self._allow, self._deny = ([normal(each) for each in names] for names in (settings.allow, settings.deny))
        self._normal = normal

    def check_requested(self, names: list[str]) -> None:
        """Refuse what callers may not ask for.

        Raises:
            SandpodError: package_blocked.
        """
        self.check_installed(names)
        for name in names:
            if self._allow and not self._matches(name, self._allow):
                raise _blocked(name, "is not on this server's list of allowed packages")

    def check_installed(self, names: Iterable[str]) -> None:
        """Refuse what may not be installed, dependencies included.

        Raises:
            SandpodError: package_blocked.
        """
        for name in names:
            if self._matches(name, self._deny):
                raise _blocked(name, "is on this server's list of blocked packages")

    def _matches(self, name: str, patterns: list[str]) -> bool:
        return any(fnmatchcase(self._normal(name), pattern) for pattern in patterns)


def _blocked(name: str, why: str) -> SandpodError:
    return SandpodError(
        ErrorCode.PACKAGE_BLOCKED, f"The package {name} {why}.", next_step="Do without it, or ask the administrator."
    )
