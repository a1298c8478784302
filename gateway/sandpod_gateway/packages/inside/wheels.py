"""Reports a sandbox's Python and its packages, and installs wheels by the binary distribution format's rules.

Wheels are unpacked into a folder of their own and put in place together, all or none. A program that is killed
meanwhile leaves that folder, which the next installation removes, and no package that is half installed.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import csv
import hashlib
import itertools
import os
import platform
import posixpath
import re
import shutil
import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

from sandpod_gateway.packages.inside import stream
from sandpod_gateway.packages.inside.stream import BASE, STAGE

HASH_FILE = "SANDPOD-SHA256"

PYTHON = "{}.{}".format(*sys.version_info[:2])
LIBRARY = f"lib/python{PYTHON}/site-packages"  # below BASE, as `pip install --user` has it
SITE = os.path.join(BASE, LIBRARY)
LONGEST_SHEBANG = 127  # bytes that the kernel reads of a first line

ENTRY = re.compile(r"(?P<module>[\w.]+)\s*:\s*(?P<object>[\w.]+)\s*(\[.*\])?")
PROGRAM = """\
{shebang}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({object}())
"""


class Transaction:
    """Moves files, those replaced to `aside` on the same file system, and all of them back if the block raises."""

    def __init__(self, aside: str) -> None:
        self._aside = aside
        self._moves: list[tuple[str, str]] = []
        self._folders: set[str] = set()
        os.makedirs(aside, exist_ok=True)

    def remove(self, path: str) -> None:
        """Move a file or a folder aside, if it is there."""
        if os.path.lexists(path):
            self._move(path, os.path.join(self._aside, str(len(self._moves))))
            self._folders.add(os.path.dirname(path))

    def put(self, source: str, target: str) -> None:
        """Move a file to its place, where another file may be."""
        if not os.path.isdir(target):
            self.remove(target)
        folder = os.path.dirname(target)
        self._folders.add(folder)
        os.makedirs(folder, exist_ok=True)
        self._move(source, target)

    def _move(self, source: str, target: str) -> None:
        os.rename(source, target)
        self._moves.append((source, target))

    def __enter__(self) -> Transaction:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for source, target in reversed(self._moves):
                os.rename(target, source)
        # Compiled code may be stale, and Python would import an empty folder as a package.
        for folder in sorted(self._folders, key=len, reverse=True):
            shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.removedirs(folder)


def state() -> dict[str, Any]:
    """Return what wheels and environment markers are chosen by, and what is installed."""
    return {"environment": environment(), "installed": installed()}


def environment() -> dict[str, Any]:
    """Return what wheels and environment markers are chosen by."""
    version = platform.python_version()
    return {
        "markers": {
            "implementation_name": sys.implementation.name,
            "implementation_version": version,
            "os_name": os.name,
            "platform_machine": platform.machine(),
            "platform_release": "",
            "platform_system": platform.system(),
            "platform_version": "",
            "python_full_version": version,
            "platform_python_implementation": platform.python_implementation(),
            "python_version": PYTHON,
            "sys_platform": sys.platform,
        },
        "abi": f"cp{PYTHON.replace('.', '')}{sys.abiflags}",
        "platform": sysconfig.get_platform(),
        "libc": platform.libc_ver(),
    }


def installed() -> dict[str, dict[str, Any]]:
    """Return what is installed, as Python finds it: the first package of a name."""
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys([SITE, *sys.path]):
        for entry, name, version in dist_infos(folder):
            if name not in found:
                sha256 = None
                with contextlib.suppress(OSError, UnicodeError), open(os.path.join(SITE, entry, HASH_FILE)) as file:
                    sha256 = file.read(64) or None
                source = "installed" if folder == SITE else "image"
                found[name] = {"version": version, "sha256": sha256, "source": source}
    return found


def dist_infos(folder: str) -> Iterator[tuple[str, str, str]]:
    """Yield folder, canonical name and version of each package's metadata."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            stem, _, suffix = entry.rpartition(".")
            name, dash, version = stem.rpartition("-")
            if suffix == "dist-info" and dash:
                yield entry, canonical(name), version


def canonical(name: str) -> str:
    """Return a package's normalized name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install(order: dict[str, Any], folders: list[str]) -> None:
    """Put unpacked wheels in place of other versions of the same packages."""
    try:
        with Transaction(os.path.join(STAGE, "aside")) as moves:
            for wheel in order["packages"]:
                remove(canonical(wheel["name"]), moves)
            for root in folders:
                found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
                for path in sorted(found, key=lambda path: ".dist-info/" in path):  # the metadata last
                    moves.put(path, os.path.join(BASE, os.path.relpath(path, root)))
    finally:
        os.makedirs(SITE, exist_ok=True)


def remove(wanted: str, moves: Transaction) -> None:
    """Remove a package that was installed here, of whatever version."""
    for entry, name, _ in dist_infos(SITE):
        if name != wanted:
            continue
        paths = []
        record = os.path.join(SITE, entry, "RECORD")
        with contextlib.suppress(OSError, UnicodeError, csv.Error), open(record, encoding="utf-8", newline="") as file:
            paths = [os.path.normpath(os.path.join(SITE, row[0])) for row in csv.reader(file) if row]
        # The metadata first: a package is never found half removed.
        moves.remove(os.path.join(SITE, entry))
        for path in paths:
            if path.startswith(f"{BASE}/") and not os.path.isdir(path):
                moves.remove(path)


def unpack(wheel: dict[str, Any], memory: IO[bytes], root: str, room: stream.Room) -> None:
    """Write a wheel's files to a folder that is laid out as BASE, and their RECORD."""
    archive = zipfile.ZipFile(memory)
    members = [member for member in archive.infolist() if not member.is_dir()]
    room.take(wheel["name"], {member.filename: member.file_size for member in members})
    info = info_folder(members, wheel["name"])
    rows: dict[str, tuple[str, str, int | str]] = {}

    def write(path: str, content: Iterable[bytes], *, executable: bool = False) -> None:
        target, digest, size = os.path.join(root, path), hashlib.sha256(), 0
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            for piece in content:
                size += file.write(piece)
                digest.update(piece)
        if executable:
            os.chmod(target, 0o755)
        sha256 = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
        rows[path] = (posixpath.relpath(path, LIBRARY), f"sha256={sha256}", size)

    for member in members:
        if member.filename != f"{info}/RECORD":
            kind, path = place(member.filename, wheel["name"])
            mode = member.external_attr >> 16
            executable = kind == "scripts" or bool(stat.S_ISREG(mode) and mode & 0o111)
            with archive.open(member) as content:
                write(path, pieces(content, script=kind == "scripts"), executable=executable)
    for name, text in programs(archive, f"{info}/entry_points.txt"):
        write(f"bin/{name}", [text.encode()], executable=True)
    for name, text in (("INSTALLER", "sandpod\n"), (HASH_FILE, wheel["sha256"])):
        write(f"{LIBRARY}/{info}/{name}", [text.encode()])
    with open(os.path.join(root, LIBRARY, info, "RECORD"), "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*rows.values(), (f"{info}/RECORD", "", "")])


def info_folder(members: list[zipfile.ZipInfo], name: str) -> str:
    """Return the folder of a wheel's metadata."""
    tops = {member.filename.partition("/")[0] for member in members}
    found = [top for top in tops if top.endswith(".dist-info")]
    if len(found) != 1 or not canonical(found[0]).startswith(canonical(name)):
        raise ValueError(f"the wheel must have one .dist-info folder of that name, and has {sorted(found)}")
    return found[0]


def place(filename: str, name: str) -> tuple[str, str]:
    """Return the scheme of a wheel's file, and its path below BASE."""
    path = posixpath.normpath(filename)
    if path.startswith(("/", "..")):
        raise ValueError(f"the wheel names a file outside of itself: {filename}")
    top, _, rest = path.partition("/")
    if not top.endswith(".data"):
        return "purelib", f"{LIBRARY}/{path}"
    kind, _, rest = rest.partition("/")
    folders = {"purelib": LIBRARY, "platlib": LIBRARY, "scripts": "bin", "data": "."}
    folders["headers"] = f"include/python{PYTHON}/{name}"
    if kind not in folders or not rest:
        raise ValueError(f"the wheel has a file of no known kind: {filename}")
    return kind, posixpath.normpath(f"{folders[kind]}/{rest}")


def pieces(content: IO[bytes], *, script: bool) -> Iterator[bytes]:
    """Return a file's content in pieces of a bounded size; a script's with this Python in its shebang."""
    first = content.readline(stream.PART) if script else b""
    if first.startswith(b"#!python"):
        first = f"{shebang()}\n".encode()
    return itertools.chain([first], iter(lambda: content.read(stream.PART), b""))


def shebang() -> str:
    """Return the first line of a script for this Python."""
    line = f"#!{sys.executable}"
    if len(line.encode()) <= LONGEST_SHEBANG and " " not in line:
        return line
    # Shell and Python read these lines each in its own way.
    return f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''"


def programs(archive: zipfile.ZipFile, path: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the program for each script entry point."""
    if path not in archive.namelist():
        return
    parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(archive.read(path).decode())
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else []:
            found = ENTRY.fullmatch(value.strip())
            if found is None or "/" in name or name in {".", ".."}:
                raise ValueError(f"the wheel has an entry point that is none: {name} = {value}")
            first = found["object"].partition(".")[0]
            yield name, PROGRAM.format(shebang=shebang(), first=first, **found.groupdict())
