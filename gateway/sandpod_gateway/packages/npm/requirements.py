"""What callers ask for of npm: names with versions, and whether they are allowed. Pure."""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.lists import MAX_LENGTH, MAX_REQUESTED, refuse_listed, refuse_unlisted
from sandpod_gateway.packages.settings import NpmSettings

NAME: Final = r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*"

# Neither a slash nor a colon, without which nothing is an address, a path, another's name or a repository.
_ASKED: Final = re.compile(rf"({NAME})(?:@([A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=|* +-]*))?", re.ASCII)
_FILE: Final = re.compile(r"\.(?:tgz|tar|tar\.gz)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NpmRequirement:
    """A package that is asked for. `spec` is a version, a range or a tag; empty for the newest."""

    name: str
    spec: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.spec}" if self.spec else self.name


def parse(packages: list[str]) -> list[NpmRequirement]:
    """Return what is asked for, each once and in order of its name.

    Raises:
        SandpodError: invalid_argument: something in it is no plain name with a version.
    """
    if not 1 <= len(packages) <= MAX_REQUESTED:
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            f"An installation is of 1 to {MAX_REQUESTED} packages.",
            next_step="Name them, or install them in several calls.",
        )
    parsed = {_parse(text.strip()) for text in packages}
    if len({each.name for each in parsed}) < len(parsed):
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "One package is asked for in two versions.",
            next_step="Name it once: a program finds one version of a package.",
        )
    return sorted(parsed, key=str)


def _parse(text: str) -> NpmRequirement:
    found = _ASKED.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if found is None or _FILE.search(text):
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "That is no name of an npm package: options, paths, addresses, repositories and aliases are not taken.",
            next_step="Use a name with a version or range if need be, such as lodash, express@4 or @types/node@^22.",
        )
    return NpmRequirement(found[1], found[2] or "")


def check_allowed(requirements: Iterable[NpmRequirement], settings: NpmSettings) -> None:
    """Refuse what callers may not ask for.

    Raises:
        SandpodError: package_blocked.
    """
    names = [requirement.name for requirement in requirements]
    check_denied(names, settings)
    refuse_unlisted(names, settings.allow, str.lower)


def allowed_of(dependencies: dict[str, str], settings: NpmSettings) -> dict[str, str]:
    """Return what callers may ask for of a sandbox's own dependencies: names of the list with plain versions."""
    found = {}
    for name, spec in dependencies.items():
        with contextlib.suppress(SandpodError):
            check_allowed([_parse(f"{name}@{spec}")], settings)
            found[name] = spec
    return found


def check_denied(names: Iterable[str], settings: NpmSettings) -> None:
    """Refuse what may not be installed, dependencies included.

    Raises:
        SandpodError: package_blocked.
    """
    refuse_listed(names, settings.deny, str.lower)
