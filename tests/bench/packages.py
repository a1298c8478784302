"""Installs the most used packages of the real index and compares each file with what pip makes of the same wheels.

    make bench-packages                                 all, for Python 3.11 to 3.14
    make bench-packages BENCH_ARGS="--few --python 3.12"

Packages are resolved and downloaded as the gateway does it, and installed by the program that runs in sandboxes. Exits
with 1 if a package fails or a file differs.
"""

import argparse
import asyncio
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import FairSlots
from sandpod_gateway.packages.pip.packages import PythonPackages, State, Target
from sandpod_gateway.packages.settings import PackageSettings
from support.package_program import install_wheels

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Wheels that are unlike others, and a module of each: with headers, data, scripts and folders as entries.
FEW = {
    "boto3": "boto3",
    "fastapi": "fastapi",
    "fpdf2": "fpdf",
    "jupyterlab-widgets": "",
    "lxml": "lxml.etree",
    "matplotlib": "matplotlib.pyplot",
    "pillow": "PIL.Image",
    "pyarrow": "pyarrow.parquet",
    "scipy": "scipy.stats",
    "seaborn": "seaborn",
    "sqlalchemy": "sqlalchemy",
    "statsmodels": "statsmodels.api",
}
MANY = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split()
PIP = re.compile(r"pip[\d.]*")  # pip names its own program after the Python that it runs on
OWN = {"INSTALLER", "RECORD", "REQUESTED", "SANDPOD-SHA256", "direct_url.json", ".lock"}


def target_of(version: str) -> Target:
    """Return a Python of this machine's kind."""
    markers = {key: str(value) for key, value in default_environment().items() if key != "platform_version"}
    markers |= {
        "python_version": version,
        "python_full_version": f"{version}.1",
        "implementation_version": f"{version}.1",
    }
    abi = f"cp{version.replace('.', '')}"
    return Target(markers=markers, abi=abi, platform=f"linux-{platform.machine()}", libc=("glibc", "2.36"))


async def downloaded(
    name: str, target: Target, settings: PackageSettings, cache: FileCache, folder: Path
) -> list[Path]:
    """Resolve a package, and return the wheels that are needed, as files in a folder."""
    sandboxes: Any = None  # that are not asked for anything
    packages = PythonPackages(sandboxes, settings, cache, FairSlots(2))
    async with packages.supplied("bench", [Requirement(name)], State(environment=target, installed={})) as (_, files):
        for wheel, content in files:
            (folder / wheel.filename).write_bytes(content.file.read())
    return [folder / wheel.filename for wheel, _ in files]


def install_both(wheels: dict[str, Path], home: Path, expected: Path, version: str) -> Iterator[str]:
    """Install wheels with the sandbox's program and with pip, and yield what the first of them fails with."""
    for name, path in wheels.items():
        failure = install_wheels(home, {name: path.read_bytes()})["failure"]
        if failure is not None:
            yield f"{name}: {failure}"
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check"]
    options += ["--only-binary", ":all:", *target_of(version).pip_options(), "--target", str(expected)]
    command = [sys.executable, "-I", "-m", "pip", "install", *options, *map(str, wheels.values())]
    subprocess.run(command, check=True)


def files_of(base: Path, library: str) -> dict[str, Path]:
    """Return the files of an installation, by their paths with what depends on its layout left out."""
    found = {}
    for path in base.rglob("*"):
        if path.is_file() and path.name not in OWN and not PIP.fullmatch(path.name):
            name = str(path.relative_to(base)).removeprefix(library)
            found[re.sub(r"^include/(site/)?python[\d.]*/", "include/", name)] = path
    return found


def differences(home: Path, expected: Path) -> Iterator[str]:
    """Yield what differs from pip's own installation into a folder."""
    library = "lib/python{}.{}/site-packages/".format(*sys.version_info)
    found, right = files_of(home / ".local", library), files_of(expected, "")
    yield from (f"missing: {path}" for path in sorted(right.keys() - found.keys()))
    yield from (f"surplus: {path}" for path in sorted(found.keys() - right.keys()))
    for path in sorted(found.keys() & right.keys()):
        modes = [os.access(each[path], os.X_OK) for each in (found, right)]
        # Programs do the same in other words.
        if modes[0] != modes[1] or not (
            path.startswith("bin/") or found[path].read_bytes() == right[path].read_bytes()
        ):
            yield f"differs: {path}"


def imports(home: Path, modules: list[str]) -> Iterator[str]:
    """Yield the modules that can't be imported."""
    library = home / ".local/lib/python{}.{}/site-packages".format(*sys.version_info)
    for module in filter(None, modules):
        command = [sys.executable, "-c", f"import {module}"]
        if subprocess.run(command, env={"PYTHONPATH": str(library), "HOME": str(home)}, check=False).returncode:
            yield f"no import of {module}"


async def faults(version: str, names: list[str], cache: FileCache) -> list[str]:
    """Return all faults for one Python."""
    target, settings, found = target_of(version), PackageSettings(max_bytes=2**30, max_packages=1000), []
    wheels: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="bench-packages-") as scratch:
        folder, home, expected = (Path(scratch) / each for each in ("wheels", "home", "pip"))
        folder.mkdir()
        for name in names:
            try:
                # Other packages may need other versions: one of each will do.
                for path in await downloaded(name, target, settings, cache, folder):
                    wheels.setdefault(path.name.partition("-")[0].replace("_", "-").lower(), path)
            except SandpodError as error:
                found.append(f"{name}: {error.code}: {error.message}")
        found += install_both(wheels, home, expected, version)
        found += differences(home, expected)
        if version == platform.python_version().rpartition(".")[0]:
            found += imports(home, [module for name, module in FEW.items() if name in names])
        print(f"Python {version}: {len(names)} packages, {len(wheels)} wheels, {len(found)} faults", flush=True)
    return found


async def main() -> int:
    """Check what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", action="store_true", help="only the packages whose wheels are unlike others")
    parser.add_argument("--python", nargs="*", choices=PYTHONS, default=PYTHONS, help="versions to install for")
    options = parser.parse_args()
    names = list(FEW) if options.few else list(dict.fromkeys([*MANY, *FEW]))
    cache = FileCache(None, 4 * 2**30)
    cache.open()
    try:
        found = [f"{version} {each}" for version in options.python for each in await faults(version, names, cache)]
    finally:
        cache.close()
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
