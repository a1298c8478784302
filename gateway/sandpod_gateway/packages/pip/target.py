"""The Python of a sandbox, as far as packages depend on it, in the terms of pip. Pure."""

import re
from functools import cached_property
from typing import Annotated, Final

from pydantic import Field

from sandpod_gateway.packages.sandbox import MAX_PACKAGES, Report, Sha256, Untrusted, Version, only_valid

_GLIBC_OLDEST: Final = 5  # manylinux_2_5, the first there is
_NAME: Final = r"[a-z0-9-]{1,128}"

_Text = Annotated[str, Field(pattern=r"^[\w.+ -]{0,64}$")]


class InstalledEntry(Untrusted):
    """A package that is installed in a sandbox, as that says."""

    version: Version
    sha256: Sha256 = ""
    added: bool = False


class Target(Untrusted):
    """A Python to install for, as it says itself; pip gets nothing of it but what fits here."""

    markers: dict[_Text, _Text]
    abi: Annotated[str, Field(pattern=r"^cp3\d{1,2}t?d?$")]
    platform: Annotated[str, Field(pattern=r"^linux-[a-z0-9_]{1,16}$")]
    libc: tuple[_Text, _Text]

    def pip_options(self) -> list[str]:
        """Return the options that make pip choose wheels for it."""
        python = re.sub(r"\D", "", self.abi)
        options = ["--implementation", "cp", "--python-version", f"{python[0]}.{python[1:]}"]
        for abi in (self.abi, "abi3", "none"):
            options += ["--abi", abi]
        for platform in self._platforms():
            options += ["--platform", platform]
        return options

    def _platforms(self) -> list[str]:
        """Return the tags of its platform, the newest first."""
        kind, version = self.libc
        minor = re.fullmatch(r"[12]\.(\d{1,3})", version)
        if kind == "glibc" and minor is not None:
            tags = [f"manylinux_2_{number}" for number in range(int(minor[1]), _GLIBC_OLDEST - 1, -1)]
            tags += ["manylinux2014", "manylinux2010", "manylinux1"]
        else:
            tags = ["musllinux_1_2", "musllinux_1_1"]
        machine = self.platform.removeprefix("linux-")
        return [f"{tag}_{machine}" for tag in (*tags, "linux")]


class State(Report):
    """What a sandbox says of its Python and its packages, checked."""

    environment: Target
    installed: Annotated[dict[str, InstalledEntry], Field(max_length=MAX_PACKAGES), only_valid(_NAME, InstalledEntry)]

    @cached_property
    def versions(self) -> dict[str, str]:
        """Return the versions that are installed, by name."""
        return {name: entry.version for name, entry in self.installed.items()}
