"""Prints Debian's packages in the image where it runs, as CycloneDX. Called by tools/sbom.sh; needs Python alone."""

import json
import re
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

STATUS: Final = Path("/var/lib/dpkg/status")
RELEASE: Final = Path("/etc/os-release")
DOC: Final = Path("/usr/share/doc")


def licences(package: str) -> list[str]:
    """Return the short names of licences in a package's copyright file, where it is of the form that has them."""
    try:
        text = (DOC / package / "copyright").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return sorted({name.strip()[:80] for name in re.findall(r"^License: *(\S.*)$", text, re.MULTILINE)})


def component(package: str, version: str, architecture: str, release: str) -> dict[str, Any]:
    """Return a component of a bill of materials."""
    purl = f"pkg:deb/debian/{quote(package)}@{quote(version)}?arch={architecture}&distro={release}"
    named = [{"license": {"name": name}} for name in licences(package)]
    return {"type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl, "licenses": named}


def main() -> None:
    """Print the bill."""
    release = dict(line.split("=", 1) for line in RELEASE.read_text(encoding="utf-8").splitlines() if "=" in line)
    distro = f"debian-{release['VERSION_ID'].strip(chr(34))}"
    packages = map(HeaderParser().parsestr, STATUS.read_text(encoding="utf-8").strip().split("\n\n"))
    found = [
        component(each["Package"], each["Version"], each["Architecture"], distro)
        for each in packages
        if each["Status"].endswith(" installed")
    ]
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": found}
    print(json.dumps(bill, indent=2))


if __name__ == "__main__":
    main()
