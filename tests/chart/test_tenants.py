"""Tenants in the chart: each has all that the default one has, in a namespace of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpod_gateway.settings import Settings
from support.chart.render import Manifest, only, refusal, render

NAMESPACE = "sandpod-sandboxes"


def inside(manifests: list[Manifest], namespace: str) -> list[Manifest]:
    """Return a namespace and everything in it, without its name."""
    found = [m for m in manifests if namespace in {m["metadata"].get("namespace"), m["metadata"]["name"]}]
    return [json.loads(json.dumps(m).replace(f'"{namespace}"', '"here"')) for m in found]


def rendered(tmp_path: Path, tenants: dict[str, Any], **more: Any) -> list[Manifest]:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"tenants": tenants, **more}), encoding="utf-8")
    return render(files=(file,))


def settings(manifests: list[Manifest], program: str) -> dict[str, Any]:
    config = only(manifests, "ConfigMap", f"sandpod-{program}-config")["data"]["config.yaml"]
    parsed: dict[str, Any] = yaml.safe_load(config)
    return parsed


def spec(manifests: list[Manifest], kind: str, namespace: str) -> dict[str, Any]:
    [found] = [m["spec"] for m in manifests if m["kind"] == kind and m["metadata"]["namespace"] == namespace]
    return dict(found)


@pytest.mark.promise("tenants-apart", "pod-security")
def test_each_tenant_has_in_its_namespace_all_that_the_default_one_has(tmp_path: Path) -> None:
    without, manifests = render(), rendered(tmp_path, {"a": {}, "b": {"namespace": "bees"}})
    own = inside(without, NAMESPACE)
    for namespace in (NAMESPACE, f"{NAMESPACE}-a", "bees"):
        assert inside(manifests, namespace) == own
    kinds = {"Namespace", "ResourceQuota", "LimitRange", "NetworkPolicy", "Role", "SandboxTemplate", "SandboxPool"}
    assert {m["kind"] for m in own} == {*kinds, "RoleBinding"}
    binding = only(manifests, "ValidatingAdmissionPolicyBinding", "sandboxes.sandpod.sandpod")
    [matched] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert matched["values"] == [NAMESPACE, f"{NAMESPACE}-a", "bees"] == settings(manifests, "operator")["namespaces"]
    # Nothing is granted beyond these namespaces.
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert [m for m in manifests if m["kind"] == kind] == [m for m in without if m["kind"] == kind]


def test_gateway_knows_each_tenants_namespace(tmp_path: Path) -> None:
    manifests = rendered(
        tmp_path, {"a": {}, "b": {"namespace": "bees"}}, gateway={"config": {"kubernetes": {"tenant_required": True}}}
    )
    kubernetes = Settings.model_validate(settings(manifests, "gateway")).kubernetes
    assert kubernetes.namespace == NAMESPACE
    assert kubernetes.tenants == {"a": f"{NAMESPACE}-a", "b": "bees"}
    assert kubernetes.tenant_required
    assert "tenants" not in settings(render(), "gateway")["kubernetes"]


def test_tenant_has_its_own_quota_limits_templates_and_pools(tmp_path: Path) -> None:
    manifests = rendered(
        tmp_path,
        {
            "a": {
                "quota": {"hard": {"pods": "7"}},
                "limitRange": {"max": {"cpu": "2"}},
                "templates": {"default": {"runtimeClassName": "own"}, "large": {"resources": {"cpu": "4"}}},
                "pools": {"large": {"replicas": 3}},
            },
            "b": {"quota": {"enabled": False}, "limitRange": {"enabled": False}, "pools": {}},
        },
    )
    a, b = f"{NAMESPACE}-a", f"{NAMESPACE}-b"
    hard = spec(manifests, "ResourceQuota", NAMESPACE)["hard"]
    assert spec(manifests, "ResourceQuota", a)["hard"] == {**hard, "pods": "7"}
    [bounds], [wide] = spec(manifests, "LimitRange", a)["limits"], spec(manifests, "LimitRange", NAMESPACE)["limits"]
    assert bounds == {**wide, "max": {**wide["max"], "cpu": "2"}}
    assert spec(manifests, "SandboxPool", a) == {"replicas": 3, "templateRef": {"name": "large"}}
    templates = {m["metadata"]["name"]: m["spec"] for m in inside(manifests, a) if m["kind"] == "SandboxTemplate"}
    assert (set(templates), templates["default"]["runtimeClassName"]) == ({"default", "large"}, "own")
    assert templates["large"]["image"] == spec(manifests, "SandboxTemplate", NAMESPACE)["image"]
    policy = only(manifests, "ValidatingAdmissionPolicy", "sandboxes.sandpod.sandpod")
    assert "['gvisor','kata','own']" in json.dumps(policy)
    assert not {"ResourceQuota", "LimitRange", "SandboxPool"} & {m["kind"] for m in inside(manifests, b)}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["tenants.A={}"], "at '/tenants/A'"),
        (["tenants.a.quotas=1"], "additional properties 'quotas' not allowed"),
        (["tenants.a.namespace=sandpod"], "tenants.a must not have the release namespace"),
        (["tenants.a.namespace=sandpod-sandboxes"], "name a namespace twice: name each once"),
        (["tenants.a.namespace=x,tenants.b.namespace=x"], "name a namespace twice: name each once"),
        ([f"tenants.{'a' * 50}.quota.enabled=true"], ".namespace would have more than 63 characters: set it."),
        (["tenants.a.pools.gpu.replicas=1"], "set its templateRef.name, or add tenants.a.templates.gpu."),
        (["tenants.a.templates.large.hostUsers=true"], 'tenants.a.templates has no template "default"'),
    ],
)
def test_tenant_that_can_not_be_is_refused_with_the_next_step(values: list[str], sentence: str) -> None:
    assert sentence in refusal(*values)
