"""Python packages of sandboxes: looked up, and installed from wheels."""

import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version

from sandpod_gateway.api.results import Package, PackageInfo
from sandpod_gateway.packages.cache import Content
from sandpod_gateway.packages.channel import MAX_LENGTH, Channel, Installed
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.pip import resolver
from sandpod_gateway.packages.pip.resolver import Wheel, Wheels
from sandpod_gateway.packages.pip.target import State

_CHARACTERS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-\[\], <>=!~*+()]*", re.ASCII)


class PythonPackages(Channel[State, Wheels]):
    """Packages of Python."""

    index = "index"
    program = "wheels"
    model = State

    def _parse(self, text: str) -> Requirement:
        # It reaches pip's command line only in the form that is made here.
        if len(text) > MAX_LENGTH or _CHARACTERS.fullmatch(text) is None:
            raise Failure.NO_REQUIREMENT.error()
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise Failure.NO_REQUIREMENT.error() from error
        if requirement.url is not None or requirement.marker is not None:
            raise Failure.NO_REQUIREMENT.error()
        requirement.name = canonicalize_name(requirement.name)
        return requirement

    def _normal(self, name: str) -> str:
        return canonicalize_name(name)

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

    def present(self, wanted: list[Requirement], state: State) -> list[Package] | None:
        """Return what is asked for if all of it is there already, else None."""
        there = state.versions
        # Extras ask for more than can be seen from versions.
        satisfied = all(
            each.name in there and not each.extras and each.specifier.contains(there[each.name], prereleases=True)
            for each in wanted
        )
        return _found(state, {each.name for each in wanted}) if satisfied else None

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


def _found(state: State, names: Iterable[str]) -> list[Package]:
    return [
        Package(name=name, version=state.installed[name].version, sha256=state.installed[name].sha256 or None)
        for name in sorted(names)
        if name in state.installed
    ]
