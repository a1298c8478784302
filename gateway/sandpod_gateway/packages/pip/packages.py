"""Python packages of sandboxes: looked up, and installed from wheels."""

import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version

from sandpod_gateway.api.package_results import Package, PackageInfo
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Content
from sandpod_gateway.packages.channel import Channel, Installed, Services
from sandpod_gateway.packages.pip import resolver
from sandpod_gateway.packages.pip.resolver import Wheel, Wheels
from sandpod_gateway.packages.pip.target import State
from sandpod_gateway.packages.requests import MAX_LENGTH, NameRules, parse_each
from sandpod_gateway.packages.sandbox import Program
from sandpod_gateway.sandboxes.service import Sandboxes

_CHARACTERS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-\[\], <>=!~*+()]*", re.ASCII)


class PythonPackages(Channel[State, Wheels]):
    """Packages of Python."""

    index = "index"

    def __init__(self, sandboxes: Sandboxes, services: Services) -> None:
        settings = services.settings
        program = Program(sandboxes, "wheels", State, settings.timeout)
        super().__init__(services, program, NameRules(settings, canonicalize_name), settings.max_packages)

    def _parse(self, packages: list[str]) -> list[Requirement]:
        return parse_each(packages, parse)

    def _listed(self, state: State) -> list[PackageInfo]:
        return [
            PackageInfo(
                name=name,
                version=entry.version,
                sha256=entry.sha256 or None,
                source="installed" if entry.added else "image",
            )
            for name, entry in sorted(state.installed.items(), key=lambda item: (not item[1].added, item[0]))
        ]

    def _present(self, wanted: list[Requirement], state: State) -> list[Package] | None:
        return _found(state, {each.name for each in wanted}) if satisfied(wanted, state.versions) else None

    def _key(self, state: State) -> str:
        return state.environment.model_dump_json()

    def _pins(self, state: State) -> dict[str, str]:
        return state.versions

    async def _resolve(self, wanted: list[Requirement], state: State, pins: dict[str, str]) -> Wheels:
        return await resolver.resolve(map(str, wanted), state.environment, pins, self._settings)

    def _is_missing(self, package: Wheel, state: State) -> bool:
        # It may be written otherwise: 2024.07 is 2024.7.
        version = state.versions.get(canonicalize_name(package.name))
        return version is None or canonicalize_version(version) != canonicalize_version(package.version)

    def _download(self, packages: list[Wheel], state: State) -> AbstractAsyncContextManager[list[Path]]:
        return resolver.download(packages, state.environment, self._settings)

    def _order(
        self, wanted: list[Requirement], state: State, found: Wheels, files: list[tuple[Wheel, Content]]
    ) -> list[dict[str, Any]]:
        del wanted, state, found
        return [{"name": wheel.name, "size": content.size, "sha256": content.sha256} for wheel, content in files]

    def _installed(self, found: Wheels, added: list[Wheel], state: State) -> Installed:
        del added
        return Installed(_found(state, {canonicalize_name(wheel.name) for wheel in found.packages}))


def parse(text: str) -> Requirement:
    """Return what a text asks for; it reaches pip's command line only in the form that is made here.

    Raises:
        SandpodError: invalid_argument: it is no plain requirement.
    """
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


def satisfied(requirements: Iterable[Requirement], installed: dict[str, str]) -> bool:
    """Return whether all is there, by versions: extras ask for more than can be seen from those."""
    return all(
        requirement.name in installed
        and not requirement.extras
        and requirement.specifier.contains(installed[requirement.name], prereleases=True)
        for requirement in requirements
    )


def _found(state: State, names: Iterable[str]) -> list[Package]:
    return [
        Package(name=name, version=state.installed[name].version, sha256=state.installed[name].sha256 or None)
        for name in sorted(names)
        if name in state.installed
    ]
