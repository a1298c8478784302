"""Run inside sandboxes by `sandbox.py`: says what is installed there, and installs wheels that come as input.

Standard library alone, as text: it is sent to the sandbox and run by its own Python, and the gateway never runs it. How
it is talked to is in `stream.py`.
"""

import contextlib
import os
import platform
import re
import shutil
import sys
import sysconfig
import zipfile
from typing import IO, Any

from sandpod_gateway.packages.inside.stream import BASE, Source, main, receive

HASH_FILE = "SANDPOD-SHA256"

PYTHON = "{}.{}".format(*sys.version_info[:2])
SITE = os.path.join(BASE, "lib", f"python{PYTHON}", "site-packages")
PROGRAMS = os.path.join(BASE, "bin")


def canonical(name: str) -> str:
    """Return a package's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def environment() -> dict[str, Any]:
    """Return what wheels and conditions of dependencies depend on."""
    return {
        "markers": {
            "implementation_name": sys.implementation.name,
            "implementation_version": platform.python_version(),
            "os_name": os.name,
            "platform_machine": platform.machine(),
            "platform_release": "",
            "platform_system": platform.system(),
            "platform_version": "",
            "python_full_version": platform.python_version(),
            "platform_python_implementation": platform.python_implementation(),
            "python_version": PYTHON,
            "sys_platform": sys.platform,
        },
        "abi": f"cp{PYTHON.replace('.', '')}{sys.abiflags}",
        "platform": sysconfig.get_platform(),
        "libc": platform.libc_ver(),
    }


def dist_infos(folder: str) -> list[tuple[str, str, str]]:
    """Return entry, canonical name and version of each package in a folder."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            stem, _, suffix = entry.rpartition(".")
            name, dash, version = stem.partition("-")
            if suffix == "dist-info" and dash:
                found.append((entry, canonical(name), version))
    return found


def installed() -> dict[str, dict[str, Any]]:
    """Return what is installed, as Python finds it: the first of a name."""
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys([SITE, *sys.path]):
        for entry, name, version in dist_infos(folder):
            if name in found:
                continue
            sha256 = ""
            if folder == SITE:
                with contextlib.suppress(OSError), open(os.path.join(SITE, entry, HASH_FILE)) as file:
                    sha256 = file.read(64)
            found[name] = {"version": version, "sha256": sha256, "added": folder == SITE}
    return found


def remove(wanted: str) -> None:
    """Remove a package that was put here, of whatever version."""
    for entry, name, _ in dist_infos(SITE):
        if name != wanted:
            continue
        folders = set()
        record = os.path.join(SITE, entry, "RECORD")
        with contextlib.suppress(OSError), open(record, encoding="utf-8") as file:
            for line in file:
                path = os.path.normpath(os.path.join(SITE, line.split(",")[0]))
                if path.startswith(f"{SITE}/"):
                    folders.add(os.path.dirname(path))
                    with contextlib.suppress(OSError):
                        os.unlink(path)
        shutil.rmtree(os.path.join(SITE, entry), ignore_errors=True)
        for folder in folders:
            shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
        for folder in sorted(folders, key=len, reverse=True):
            # An empty folder would still be found as a package.
            with contextlib.suppress(OSError):
                os.removedirs(folder)
        os.makedirs(SITE, exist_ok=True)


def unpack(wheel: dict[str, Any], memory: IO[bytes]) -> None:
    """Put a wheel's files where they belong, in place of another version; all of them or none."""
    name = canonical(wheel["name"])
    with zipfile.ZipFile(memory) as archive:
        tops = {member.split("/")[0] for member in archive.namelist()}
        info = os.path.join(SITE, next(top for top in tops if top.endswith(".dist-info")))
        remove(name)
        try:
            # What tells of the others comes first, so that they can be found again after a failure.
            for member in sorted(archive.infolist(), key=lambda member: ".dist-info/" not in member.filename):
                place(archive, member)
            make_programs(os.path.join(info, "entry_points.txt"))
            for file, text in (("INSTALLER", "sandpod\n"), (HASH_FILE, wheel["sha256"])):
                with open(os.path.join(info, file), "w") as written:
                    written.write(text)
        except BaseException:
            remove(name)
            raise


def place(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Write one file."""
    parts = member.filename.split("/")
    target, mode = SITE, (member.external_attr >> 16) & 0o111
    script = False
    if parts[0].endswith(".data") and len(parts) > 2:  # noqa: PLR2004 - its folder, the kind, the file's own path
        kind = parts[1]
        if kind == "headers":
            return
        script = kind == "scripts"
        target = {"scripts": PROGRAMS, "data": BASE}.get(kind, SITE)
        member.filename = "/".join(parts[2:])
    path = archive.extract(member, target)
    if not os.path.isfile(path):
        return
    if script:
        point_to_python(path)
    if script or mode:
        os.chmod(path, 0o755)


def point_to_python(path: str) -> None:
    """Name this Python in a script that is written for any."""
    with open(path, "r+b") as file:
        text = file.read()
        if text.startswith(b"#!python"):
            file.seek(0)
            file.truncate()
            file.write(b"#!" + sys.executable.encode() + text[text.index(b"\n") :])


def make_programs(path: str) -> None:
    """Make a program of each console script."""
    try:
        with open(path, encoding="utf-8") as file:
            sections = re.split(r"^\[([^\]]+)\]\s*$", file.read(), flags=re.MULTILINE)
    except FileNotFoundError:
        return
    os.makedirs(PROGRAMS, exist_ok=True)
    scripts = "".join(
        text for kind, text in zip(sections[1::2], sections[2::2], strict=True) if kind == "console_scripts"
    )
    for name, module, function in re.findall(r"^\s*([\w.-]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)", scripts, re.MULTILINE):
        program = os.path.join(PROGRAMS, name)
        first = function.split(".")[0]
        with open(program, "w") as file:
            file.write(f"#!{sys.executable}\nimport sys\nfrom {module} import {first}\nsys.exit({function}())\n")
        os.chmod(program, 0o755)


def install(wheels: list[dict[str, Any]], source: Source) -> None:
    """Install wheels."""
    os.makedirs(SITE, exist_ok=True)
    for wheel in wheels:
        with receive(wheel, source) as memory:
            unpack(wheel, memory)


if __name__ == "__main__":
    main(install, lambda: {"environment": environment(), "installed": installed()})
