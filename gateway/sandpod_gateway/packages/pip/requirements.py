"""What callers ask for: names with extras and versions, and whether they are allowed. Pure.

A name reaches pip's command line only in the form that is made here, never as it came.
"""

import re
from collections.abc import Iterable
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.lists import MAX_LENGTH, MAX_REQUESTED, refuse_listed, refuse_unlisted
from sandpod_gateway.packages.settings import PackageSettings

_CHARACTERS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-\[\], <>=!~*+()]*", re.ASCII)


def parse(packages: list[str]) -> list[Requirement]:
    """Return what is asked for, each once and in order of its name.

    Raises:
        SandpodError: invalid_argument: something in it is no plain requirement.
    """
    if not 1 <= len(packages) <= MAX_REQUESTED:
        raise SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            f"An installation is of 1 to {MAX_REQUESTED} packages.",
            next_step="Name them, or install them in several calls.",
        )
    parsed = [_parse(text.strip()) for text in packages]
    return sorted({str(requirement): requirement for requirement in parsed}.values(), key=str)


def _parse(text: str) -> Requirement:
    refusal = SandpodError(
        ErrorCode.INVALID_ARGUMENT,
        "That is no package name: options, paths, addresses and conditions are not taken.",
        next_step="Use a name with extras or versions if need be, such as numpy, uvicorn[standard] or numpy>=1.26,<3.",
    )
    if len(text) > MAX_LENGTH or _CHARACTERS.fullmatch(text) is None:
        raise refusal
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise refusal from error
    if requirement.url is not None or requirement.marker is not None:
        raise refusal
    requirement.name = canonicalize_name(requirement.name)
    return requirement


def check_allowed(requirements: Iterable[Requirement], settings: PackageSettings) -> None:
    """Refuse what callers may not ask for.

    Raises:
        SandpodError: package_blocked.
    """
    names = [requirement.name for requirement in requirements]
    check_denied(names, settings)
    refuse_unlisted(names, settings.allow, _normal)


def check_denied(names: Iterable[str], settings: PackageSettings) -> None:
    """Refuse what may not be installed, dependencies included.

    Raises:
        SandpodError: package_blocked.
    """
    refuse_listed(names, settings.deny, _normal)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def satisfied(requirements: Iterable[Requirement], installed: dict[str, str]) -> bool:
    """Tell whether all is there already: extras ask for more than can be seen from versions.

    Args:
        requirements: What is asked for.
        installed: Versions by canonical name.
    """
    return all(
        requirement.name in installed
        and not requirement.extras
        and requirement.specifier.contains(installed[requirement.name], prereleases=True)
        for requirement in requirements
    )
