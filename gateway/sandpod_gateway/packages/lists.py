"""Lists of packages that may or may not be installed, and the bounds of what one call asks for. Pure."""

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

MAX_REQUESTED: Final = 50
MAX_LENGTH: Final = 200
"""Characters of one package's name and version."""


def refuse_listed(names: Iterable[str], patterns: Iterable[str], normal: Callable[[str], str]) -> None:
    """Refuse names that are on a list; `normal` makes names and patterns comparable.

    Raises:
        SandpodError: package_blocked.
    """
    for name in names:
        if _matches(name, patterns, normal):
            raise _blocked(name, "is on this server's list of blocked packages")


def refuse_unlisted(names: Iterable[str], patterns: Collection[str], normal: Callable[[str], str]) -> None:
    """Refuse names that are not on a list, unless it is empty.

    Raises:
        SandpodError: package_blocked.
    """
    for name in names:
        if patterns and not _matches(name, patterns, normal):
            raise _blocked(name, "is not on this server's list of allowed packages")


def _matches(name: str, patterns: Iterable[str], normal: Callable[[str], str]) -> bool:
    return any(fnmatchcase(normal(name), normal(pattern)) for pattern in patterns)


def _blocked(name: str, why: str) -> SandpodError:
    return SandpodError(
        ErrorCode.PACKAGE_BLOCKED, f"The package {name} {why}.", next_step="Do without it, or ask the administrator."
    )
