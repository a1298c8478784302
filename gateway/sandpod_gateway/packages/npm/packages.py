"""npm packages of sandboxes: looked up, resolved, downloaded or taken from the cache."""

import contextlib
import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandpod_gateway.api.results import Package, PackageInfo
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Content
from sandpod_gateway.packages.channel import MAX_LENGTH, Channel, Installed
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.npm import resolver
from sandpod_gateway.packages.npm.resolver import REGISTRY, NpmPackage, Resolved
from sandpod_gateway.packages.npm.state import NAME, NpmState
from sandpod_gateway.packages.settings import NpmSettings

# Neither a slash nor a colon, without which nothing is an address, a path, another's name or a repository.
_ASKED: Final = re.compile(rf"({NAME})(?:@([A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=|* +-]*))?", re.ASCII)
_FILE: Final = re.compile(r"\.(?:tgz|tar|tar\.gz)$", re.IGNORECASE)
_NAMED: Final = 5  # packages that a note names


@dataclass(frozen=True, slots=True)
class NpmRequirement:
    """A package that is asked for. `spec` is a version, a range or a tag; empty for the newest."""

    name: str
    spec: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.spec}" if self.spec else self.name


class NpmPackages(Channel[NpmState, Resolved]):
    """Packages of npm."""

    index = REGISTRY
    program = "npm"
    model = NpmState

    @property
    def _limits(self) -> NpmSettings:
        return self._settings.npm

    def parse(self, packages: list[str]) -> list[NpmRequirement]:
        """Return what is asked for, each once and in order of its name."""
        wanted = super().parse(packages)
        if len({each.name for each in wanted}) < len(wanted):
            raise Failure.TWO_VERSIONS.error()
        return wanted

    def _parse(self, text: str) -> NpmRequirement:
        found = _ASKED.fullmatch(text) if len(text) <= MAX_LENGTH else None
        if found is None or _FILE.search(text):
            raise Failure.NO_NPM_REQUIREMENT.error()
        return NpmRequirement(found[1], found[2] or "")

    def _normal(self, name: str) -> str:
        return name.lower()

    def _listed(self, state: NpmState) -> list[PackageInfo]:
        added = {
            path.removeprefix("node_modules/"): entry
            for path, entry in state.record.packages.items()
            if path.count("node_modules/") == 1
        }
        return [
            *(
                PackageInfo(name=name, version=entry.version, sha256=entry.sha256 or None, source="installed")
                for name, entry in sorted(added.items())
            ),
            *(
                PackageInfo(name=name, version=version, source="image")
                for name, version in sorted(state.image.items())
                if name not in added
            ),
        ]

    def present(self, wanted: list[NpmRequirement], state: NpmState) -> list[Package] | None:
        """Return what is asked for if all of it is there already, else None."""
        state.require_node()
        found = [_present(requirement, state) for requirement in wanted]
        return [package for package in found if package] if all(found) else None

    def _key(self, state: NpmState) -> str:
        return f"{state.require_node().model_dump_json()} {sorted(self._dependencies(state).items())}"

    def _pins(self, state: NpmState) -> dict[str, Any]:
        """Return what is installed, as it stands in a lock file.

        Where names are listed, nothing is: a sandbox could name other packages in it as dependencies of those that are
        allowed. Dependencies come at the newest versions that fit then.
        """
        return {} if self._limits.allow else state.record.lock()

    def _dependencies(self, state: NpmState) -> dict[str, str]:
        if not self._limits.allow:
            return state.record.dependencies
        found = {}
        for name, spec in state.record.dependencies.items():
            with contextlib.suppress(SandpodError):
                self._check_requested([self._parse(f"{name}@{spec}").name])
                found[name] = spec
        return found

    async def _resolve(self, wanted: list[NpmRequirement], state: NpmState, pins: dict[str, Any]) -> Resolved:
        texts = {requirement.name: str(requirement) for requirement in wanted}
        target, before = state.require_node(), self._dependencies(state)
        return await resolver.resolve(texts, target, before, pins, self._settings)

    def _is_missing(self, package: NpmPackage, state: NpmState) -> bool:
        there = state.record.packages.get(package.path)
        return there is None or there.version != package.version

    def _download(self, packages: list[NpmPackage], state: NpmState) -> AbstractAsyncContextManager[list[Path]]:
        return resolver.download(packages, state.require_node(), self._settings)

    def _order(
        self,
        wanted: list[NpmRequirement],
        state: NpmState,
        found: Resolved,
        files: list[tuple[NpmPackage, Content]],
    ) -> dict[str, Any]:
        before = state.record
        hashes = {path: entry.sha256 for path, entry in before.packages.items()}
        hashes |= {package.path: content.sha256 for package, content in files}
        paths = {package.path for package in found.packages}
        locked = {
            path: {**entry, "sha256": hashes.get(path, "")} for path, entry in found.lock.items() if path in paths
        }
        asked = before.asked | {requirement.name: str(requirement) for requirement in wanted}
        return {
            "packages": [
                {"name": package.name, "path": package.path, "sha256": content.sha256, "size": content.size}
                for package, content in files
            ],
            "gone": sorted(set(before.packages) - paths),
            "asked": [requirement.name for requirement in wanted],
            "record": {"asked": asked, "dependencies": found.dependencies, "packages": locked},
        }

    def _installed(self, found: Resolved, added: list[NpmPackage], state: NpmState) -> Installed:
        there = state.record.packages
        needed = sorted((package for package in found.packages if package.needed), key=lambda package: package.path)
        packages = [
            Package(
                name=each.name,
                version=each.version,
                sha256=there[each.path].sha256 or None if each.path in there else None,
            )
            for each in needed
        ]
        return Installed(packages, _note(sorted({package.name for package in added if package.script})))


def _present(requirement: NpmRequirement, state: NpmState) -> Package | None:
    """Return a package that fits what is asked for: the record's, else the image's."""
    name, spec = requirement.name, requirement.spec
    entry = state.record.packages.get(f"node_modules/{name}")
    if entry is not None:
        fits = not spec or state.record.asked.get(name) == str(requirement)
        return Package(name=name, version=entry.version, sha256=entry.sha256 or None) if fits else None
    version = state.image.get(name)
    return Package(name=name, version=version) if version is not None and spec in {"", version} else None


def _note(names: list[str]) -> str | None:
    if not names:
        return None
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"Scripts that packages run at their installation were not run: those of {listed}. What they would have built "
        "or downloaded is not there; where a program misses it, use another package."
    )
