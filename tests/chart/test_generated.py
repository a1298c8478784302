"""Generated files are what the types and the chart say now, and a change of either is noticed."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from support.chart.render import CHART, ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """tools/ is a folder of programs, no package: the program is loaded by its path."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date(generate: ModuleType) -> None:
    assert generate.differences(ROOT) == []


def test_edited_file_is_noticed(generate: ModuleType, tmp_path: Path) -> None:
    for folder in ("charts", "manifests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "operator").mkdir()
    shutil.copy(ROOT / "operator" / "reasons.md", tmp_path / "operator")
    with (tmp_path / "manifests" / "install.yaml").open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    (diff,) = generate.differences(tmp_path)
    assert "-# edited" in diff


def test_install_manifest_has_the_namespaces_and_crds_before_what_needs_them() -> None:
    kinds = [
        manifest["kind"]
        for manifest in yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text(encoding="utf-8"))
    ]
    assert kinds[0] == "Namespace"
    last_definition = len(kinds) - 1 - kinds[::-1].index("CustomResourceDefinition")
    assert min(kinds.index("SandboxTemplate"), kinds.index("SandboxPool")) > last_definition
    assert kinds.count("Namespace") == 2
    assert "Pod" not in kinds
    assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") == 1


def test_chart_and_manifests_have_the_same_crds() -> None:
    in_chart = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CHART / "crds").glob("*.yaml")]
    alone = list(yaml.safe_load_all((ROOT / "manifests" / "crds.yaml").read_text(encoding="utf-8")))
    assert sorted(c["metadata"]["name"] for c in in_chart) == sorted(c["metadata"]["name"] for c in alone)
