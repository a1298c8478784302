"""Lists all components and licences of the bills of materials that tools/sbom.sh has written: `tools/sbom.py FOLDER`.

With `--validate FILE` it checks one against CycloneDX's schema; that needs the environment of requirements/sbom.lock.
With `--complete FILE SITE_PACKAGES` it adds licences that packages name in own words: cyclonedx-py takes ids only.
"""

import csv
import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

Row = tuple[str, str, str]

UNDECLARED: Final = "not declared"


def licences(component: dict[str, Any]) -> str:
    """Return the licences of a component in one line: SPDX ids or expressions, else the name that it gives itself."""
    found = component.get("licenses", [])
    named = [each.get("expression") or each["license"].get("id") or each["license"].get("name", "") for each in found]
    return " AND ".join(sorted({" ".join(name.split())[:80] for name in named if name})) or UNDECLARED


def complete(path: Path, packages: Path) -> None:
    """Add what packages in a folder name as their licence to the components of a bill that have none."""
    bill = json.loads(path.read_text(encoding="utf-8"))
    installed = [each.metadata for each in distributions(path=[str(packages)])]
    found = {each["Name"]: each.json.get("license", "") for each in installed}
    for component in bill["components"]:
        name = " ".join(str(found[component["name"]]).split())
        if name and not component.get("licenses"):
            component["licenses"] = [{"license": {"name": name[:80], "acknowledgement": "declared"}}]
    path.write_text(json.dumps(bill, indent=2), encoding="utf-8")


def rows(bill: dict[str, Any]) -> list[Row]:
    """Return purl, version and licences of all components. Raises ValueError: there are none, or one is not exact."""
    found = [(each.get("purl", ""), each.get("version", ""), licences(each)) for each in bill.get("components", [])]
    lacking = [row for row in found if not all(row)]
    if lacking or not found:
        raise ValueError(f"components without purl or version: {lacking or 'all'}")
    return sorted(found)


def table(folder: Path) -> list[tuple[str, ...]]:
    """Return what is in all bills of a folder, the file of each first."""
    found: list[tuple[str, ...]] = []
    for path in sorted(folder.glob("*.cdx.json")):
        bill = json.loads(path.read_text(encoding="utf-8"))
        found += [(path.name.removesuffix(".cdx.json"), *row) for row in rows(bill)]
    return found


def validate(path: Path) -> None:
    """Raise SystemExit if a file is no CycloneDX."""
    # The environment of the rest of the tools does without them.
    from cyclonedx.schema import SchemaVersion  # type: ignore[import-not-found]  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # type: ignore[import-not-found]  # noqa: PLC0415
    from jsonschema.validators import Draft7Validator  # type: ignore[import-untyped]  # noqa: PLC0415

    # Its own check of addresses, by a parser of any grammar, would take ten seconds for a bill.
    Draft7Validator.FORMAT_CHECKER.checks("iri-reference", ValueError)(urlsplit)
    text = path.read_text(encoding="utf-8")
    problem = JsonStrictValidator(SchemaVersion.from_version(json.loads(text)["specVersion"])).validate_str(text)
    if problem is not None:
        raise SystemExit(f"{path} is no CycloneDX: {problem}")


if __name__ == "__main__":
    if sys.argv[1] == "--validate":
        validate(Path(sys.argv[2]))
    elif sys.argv[1] == "--complete":
        complete(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        with Path(sys.argv[1], "licenses.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("part", "component", "version", "licenses"), *table(Path(sys.argv[1]))])
