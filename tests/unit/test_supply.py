"""What comes from others: exact versions with hashes, and licences that can be listed."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = [*sorted((ROOT / "requirements").glob("*.lock")), ROOT / "containers/sandbox/requirements.txt"]
NPM_LOCKS: Final = sorted(
    path for top in ("containers", "tests", "tools") for path in (ROOT / top).glob("**/package-lock.json")
)


def named(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


@named(LOCKS)
def test_every_python_package_is_locked_to_a_version_and_hashes(path: Path) -> None:
    entries = re.findall(r"^(\S.*?)(?<!\\)$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = [entry for entry in entries if not entry.startswith("#")]
    assert found
    assert [entry for entry in found if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry, re.DOTALL)] == []


@named(NPM_LOCKS)
def test_every_javascript_package_is_locked_to_a_version_and_a_hash(path: Path) -> None:
    packages = json.loads(path.read_text(encoding="utf-8"))["packages"]
    own = packages.pop("")
    assert own.get("dependencies") or own.get("devDependencies")
    assert [
        name
        for name, entry in packages.items()
        if not (entry["version"] and entry.get("integrity", "").startswith("sha512-"))
    ] == []


def test_images_install_nothing_from_a_registry_that_is_not_locked() -> None:
    for path in sorted((ROOT / "containers").glob("*/Dockerfile")):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        installs = re.findall(r"(?:pip install|npm-cli\.js\"?) [^&;]*", text)
        assert installs, path
        assert [
            each
            for each in installs
            if not ("--require-hashes" in each or "--no-deps /tmp/build/*.whl" in each or re.match(r"\S+ ci ", each))
        ] == []


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sbom() -> Any:
    return tool("sbom")


def test_debians_packages_that_are_installed_are_listed_with_their_licences(
    sbom: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debian = tool("debian_packages")
    debian.STATUS, debian.RELEASE, debian.DOC = (tmp_path / name for name in ("status", "release", "doc"))
    debian.RELEASE.write_text('NAME="Debian GNU/Linux"\nVERSION_ID="12"\n')
    status = "Package: {}\nStatus: {}\nArchitecture: amd64\nVersion: 1:2.3+b1\nDescription: a\n line\n"
    gone = "deinstall ok config-files"
    states = {"bash": "install ok installed", "plain": "hold ok installed", "gone": gone}
    debian.STATUS.write_text("\n".join(status.format(*each) for each in states.items()))
    (debian.DOC / "bash").mkdir(parents=True)
    (debian.DOC / "bash/copyright").write_text(
        "License: GPL-3+\n text\nLicense: GPL-3+\nLicense:\n\nLicense: Latex2e\n"
    )
    debian.main()
    found = sbom.rows(json.loads(capsys.readouterr().out))
    assert found == [
        ("pkg:deb/debian/bash@1%3A2.3%2Bb1?arch=amd64&distro=debian-12", "1:2.3+b1", "GPL-3+ AND Latex2e"),
        ("pkg:deb/debian/plain@1%3A2.3%2Bb1?arch=amd64&distro=debian-12", "1:2.3+b1", sbom.UNDECLARED),
    ]


def test_licences_are_ids_expressions_or_names_each_once(sbom: Any) -> None:
    found = [
        {"expression": "Apache-2.0 OR MIT"},
        {"license": {"id": "MIT"}},
        {"license": {"id": "MIT", "acknowledgement": "declared"}},
        {"license": {"name": "License ::\n OSI Approved"}},
    ]
    assert sbom.licences({"licenses": found}) == "Apache-2.0 OR MIT AND License :: OSI Approved AND MIT"
    assert sbom.licences({}) == sbom.UNDECLARED


def test_table_has_each_component_of_each_bill(sbom: Any, tmp_path: Path) -> None:
    component = {"purl": "pkg:pypi/a@1", "version": "1", "licenses": [{"license": {"id": "MIT"}}]}
    for part in ("gateway", "operator"):
        (tmp_path / f"{part}.cdx.json").write_text(json.dumps({"components": [component]}), encoding="utf-8")
    assert sbom.table(tmp_path) == [(part, "pkg:pypi/a@1", "1", "MIT") for part in ("gateway", "operator")]


@pytest.mark.parametrize("components", [[], [{"purl": "pkg:pypi/a@1"}], [{"name": "a", "version": "1"}]])
def test_bill_that_is_empty_or_not_exact_is_refused(sbom: Any, components: list[dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="without purl or version"):
        sbom.rows({"components": components})
