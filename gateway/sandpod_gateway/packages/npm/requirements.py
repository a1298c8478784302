"""What callers ask for of npm: names with versions. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.requests import MAX_LENGTH, parse_each

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


def parse_all(packages: list[str]) -> list[NpmRequirement]:
    """Return what is asked for, each once and in order of its name.

    Raises:
        SandpodError: invalid_argument: something in it is no plain name with a version.
    """
    parsed = parse_each(packages, parse)
    if len({each.name for each in parsed}) < len(parsed):
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "One package is asked for in two versions.",
            next_step="Name it once: a program finds one version of a package.",
        )
    return parsed


def parse(text: str) -> NpmRequirement:
    """Return what a text asks for.

    Raises:
        SandpodError: invalid_argument: it is no plain name with a version.
    """
    found = _ASKED.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if found is None or _FILE.search(text):
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "That is no name of an npm package: options, paths, addresses, repositories and aliases are not taken.",
            next_step="Use a name with a version or range if need be, such as lodash, express@4 or @types/node@^22.",
        )
    return NpmRequirement(found[1], found[2] or "")
