"""The bill of materials of the local server names all that is installed for it: `make sbom`, but for its images' parts.

It installs two lock files, and takes from the package index what was not installed before.
"""

import json
import re
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKED = re.compile(r"^([a-z0-9._-]+)==(\S+)(?: ; .*)? \\$", re.MULTILINE)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    path = ROOT / ".build/sbom/local.cdx.json"
    path.unlink(missing_ok=True)
    made = subprocess.run([ROOT / "tools/sbom.sh", "local"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_bill_has_the_name_version_and_licence_of_each_package_that_is_installed(bill: dict[str, Any]) -> None:
    [folder] = (ROOT / ".build/sbom-work/local/lib").glob("python*/site-packages")
    installed = {canonical(each.name): each.version for each in distributions(path=[str(folder)])}
    found = {each["name"]: each["version"] for each in bill["components"]}
    assert {canonical(name): version for name, version in found.items()} == installed
    assert installed.items() <= dict(LOCKED.findall((ROOT / "requirements/run.lock").read_text("utf-8"))).items()
    purls = {each["purl"] for each in bill["components"]}
    assert purls == {f"pkg:pypi/{canonical(name)}@{version}" for name, version in found.items()}
    assert [each["name"] for each in bill["components"] if not each.get("licenses")] == []
    assert len(installed) > 50


def test_bill_is_of_sandpod_and_says_what_needs_what(bill: dict[str, Any]) -> None:
    own = bill["metadata"]["component"]
    assert (own["name"], bill["bomFormat"]) == ("sandpod", "CycloneDX")
    needs = {each["ref"]: set(each.get("dependsOn", [])) for each in bill["dependencies"]}
    names = {each["bom-ref"]: each["name"] for each in bill["components"]}
    assert needs.keys() == {*names, own["bom-ref"]}
    assert {"fastmcp", "uvicorn", "pydantic"} <= {names[ref] for ref in needs[own["bom-ref"]]}


def test_bill_has_each_javascript_library_that_the_console_has_a_copy_of(bill: dict[str, Any]) -> None:
    assert bill
    found = json.loads((ROOT / ".build/sbom/local-console.cdx.json").read_bytes())["components"]
    named = {(each["purl"].partition("/")[2].rpartition("@")[0].replace("%40", "@"), each["version"]) for each in found}
    licences = (ROOT / "gateway/sandpod_gateway/console/static/vendor/LICENSES.txt").read_text("utf-8")
    copied = set(re.findall(r"^(\S+) (\S+) \(\S+\)\n=+$", licences, re.MULTILINE))
    assert named == copied
    assert len(copied) > 20
    assert [each["name"] for each in found if not each.get("licenses")] == []


def test_list_of_licences_has_each_package(bill: dict[str, Any]) -> None:
    rows = (ROOT / ".build/sbom/licenses.csv").read_text("utf-8").splitlines()
    assert len([row for row in rows if row.startswith("local,pkg:pypi/")]) == len(bill["components"])
