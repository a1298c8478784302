"""Reports a sandbox's Node.js and its npm packages, and installs others.

Packages lie where `npm install --global` puts them for a prefix of `~/.local`, with a record of what was requested
and of npm's lock file. Nothing of a package is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from sandpod_gateway.packages.inside.stream import BASE, Room

LIB = os.path.join(BASE, "lib")
MODULES = os.path.join(LIB, "node_modules")
PROGRAMS = os.path.join(BASE, "bin")
RECORD = os.path.join(LIB, "npm.json")

DESCRIBE = """
process.report.excludeNetwork = true;
const libc = process.report.getReport().header.glibcVersionRuntime ? "glibc" : "musl";
console.log(JSON.stringify({ node: process.version, os: process.platform, cpu: process.arch, libc }));
"""


def read_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file, empty where there is none."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        found = json.load(file)
        return found if isinstance(found, dict) else {}
    return {}


def environment() -> dict[str, Any] | None:
    """Return the platform that packages are chosen by, or None where there is no Node.js."""
    try:
        done = subprocess.run(["node", "-e", DESCRIBE], capture_output=True, check=True, timeout=60)
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def image_packages() -> dict[str, str]:
    """Return the versions of the image's own global packages, by name."""
    found: dict[str, str] = {}
    for folder in os.environ.get("NODE_PATH", "").split(":"):
        if not folder or folder == MODULES:
            continue
        for name in names_in(folder):
            version = read_json(os.path.join(folder, name, "package.json")).get("version")
            if isinstance(version, str):
                found.setdefault(name, version)
    return found


def names_in(folder: str) -> Iterator[str]:
    """Yield the names of the packages in a folder of them."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith("@"):
                yield from (f"{name}/{each}" for each in os.listdir(os.path.join(folder, name)))
            elif not name.startswith("."):
                yield name


def state() -> dict[str, Any]:
    """Return what is installed, without packages whose folder a program has removed."""
    record = read_json(RECORD)
    locked = record.get("packages")
    there = locked if isinstance(locked, dict) else {}
    present = {path: entry for path, entry in there.items() if os.path.isfile(os.path.join(LIB, path, "package.json"))}
    return {"environment": environment(), "record": {**record, "packages": present}, "image": image_packages()}


def unpack(package: dict[str, Any], memory: IO[bytes], target: str, room: Room) -> None:
    """Write a package's files, whose one outer folder may have any name. Links are left out, as npm does it."""
    os.makedirs(target, exist_ok=True)
    with tarfile.open(fileobj=memory, mode="r:*") as archive:
        room.take(package["name"], {member.name: member.size for member in archive if member.isfile()})
        for member in archive:
            parts = [part for part in member.name.split("/") if part not in {"", "."}][1:]
            if not member.isfile() or not parts or ".." in parts:
                continue
            path = os.path.join(target, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            content = archive.extractfile(member)
            if content is not None:
                with open(path, "wb") as file:
                    shutil.copyfileobj(content, file)
                os.chmod(path, 0o755 if member.mode & 0o111 else 0o644)


def remove(path: str) -> None:
    """Remove a package, or a link to the image's."""
    if os.path.islink(path):
        os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def put(new: str, target: str) -> None:
    """Move an unpacked package in place of the old one, whose nested packages are kept."""
    kept = os.path.join(target, "node_modules")
    if os.path.isdir(kept) and not os.path.islink(target):
        below = os.path.join(new, "node_modules")
        for name in names_in(kept):
            if not os.path.lexists(os.path.join(below, name)):
                os.makedirs(os.path.dirname(os.path.join(below, name)), exist_ok=True)
                os.rename(os.path.join(kept, name), os.path.join(below, name))
    remove(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(new, target)


def link_programs(name: str) -> None:
    """Link the programs of a requested package."""
    folder = os.path.join(MODULES, name)
    programs = read_json(os.path.join(folder, "package.json")).get("bin")
    if isinstance(programs, str):
        programs = {name.rpartition("/")[2]: programs}
    elif not isinstance(programs, dict):
        return
    os.makedirs(PROGRAMS, exist_ok=True)
    for program, file in programs.items():
        target = os.path.normpath(os.path.join(folder, str(file)))
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", program) or not target.startswith(f"{folder}/"):
            continue
        if os.path.isfile(target):
            os.chmod(target, 0o755)
            link = os.path.join(PROGRAMS, program)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
            os.symlink(target, link)


def install(order: dict[str, Any], folders: list[str]) -> None:
    """Put unpacked packages in place, remove those that are no longer needed, and write the record."""
    # The outer ones first, which the others go into.
    for folder, package in sorted(zip(folders, order["packages"]), key=lambda item: str(item[1]["path"])):
        put(folder, os.path.join(LIB, package["path"]))
    for path in order["gone"]:
        remove(os.path.join(LIB, path))
    for name in order["asked"]:
        link_programs(name)
    with open(f"{RECORD}.new", "w", encoding="utf-8") as file:
        json.dump(order["record"], file)
    os.replace(f"{RECORD}.new", RECORD)
