"""Generated files are what the types and the chart say now, and a change of either is noticed."""

import shutil
from pathlib import Path

import yaml

import chart_readme
import generate
from support.chart.render import CHART, ROOT


def test_generated_files_are_up_to_date() -> None:
    assert generate.differences(ROOT) == []


def test_edited_file_is_noticed(tmp_path: Path) -> None:
    for folder in ("charts", "manifests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
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
    assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") == 3


def test_chart_and_manifests_have_the_same_crds() -> None:
    in_chart = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CHART / "crds").glob("*.yaml")]
    alone = list(yaml.safe_load_all((ROOT / "manifests" / "crds.yaml").read_text(encoding="utf-8")))
    assert sorted(c["metadata"]["name"] for c in in_chart) == sorted(c["metadata"]["name"] for c in alone)


def test_changed_crd_has_another_digest() -> None:
    digests = [
        each["metadata"]["annotations"]["sandpod.dev/spec-digest"] for each in generate.definitions_of_resources()
    ]
    assert len(set(digests)) == len(digests)
    in_chart = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CHART / "crds").glob("*.yaml")]
    assert sorted(c["metadata"]["annotations"]["sandpod.dev/spec-digest"] for c in in_chart) == sorted(digests)


def test_readme_of_the_chart_has_every_value_with_a_comment() -> None:
    text = """# Head.

# One.
one: 1
# A map.
map:
  # Two.
  two: {"a": "b|c"}
  list: []
other: {x: 1}
"""
    page = chart_readme.page(text)
    assert page.partition("|---|---|---|\n")[2].splitlines() == [
        "| `one` | `1` | One. |",
        "| `map` |  | A map. |",
        r'| `map.two` | `{"a": "b\|c"}` | Two. |',
        "| `map.list` | `[]` |  |",
        '| `other` | `{"x": 1}` |  |',
    ]
    assert "\nHead.\n" in page
