"""Tenants that are made on first use: what the operator makes is what the chart makes, and its rights end there."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpod_gateway.settings import Settings
from sandpod_operator.manifests.tenant import Content, Manifest
from sandpod_operator.settings import OperatorSettings
from support.chart.render import only, refusal, render

NAMESPACE = "sandpod-sandboxes"
ON = "tenantsOnFirstUse.enabled=true"
RIGHTS = "sandpod-operator-sandpod"
HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by")


def rendered(tmp_path: Path, **values: Any) -> list[Manifest]:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    return render(files=(file,))


def content(manifests: list[Manifest]) -> Content:
    """Return what the operator reads in its pod."""
    text = only(manifests, "ConfigMap", "sandpod-operator-tenant")["data"]["tenant.yaml"]
    return Content.parse(text.encode())


def named(manifests: list[Manifest], namespace: str) -> dict[tuple[str, str], Manifest]:
    """Return a namespace and what is in it, without the namespace's name and what says who looks after it."""
    found = {}
    for each in manifests:
        metadata = each["metadata"]
        if namespace in {metadata["name"], metadata.get("namespace")}:
            plain = json.loads(json.dumps(each).replace(f'"{namespace}"', '"here"'))
            labels = plain["metadata"].get("labels", {})
            for label in HELM:
                labels.pop(label, None)
            plain["metadata"].get("annotations", {}).pop("helm.sh/resource-policy", None)
            if not plain["metadata"].get("annotations", {"": ""}):
                del plain["metadata"]["annotations"]
            found[plain["kind"], plain["metadata"]["name"]] = plain
    return found


def rules(role: Manifest) -> set[tuple[str, str]]:
    """Return the rights of a role: verb, and resource with the names that it is limited to."""
    return {
        (verb, ":".join((resource, *rule.get("resourceNames", ()))))
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_nothing_of_it_is_there_unless_it_is_switched_on() -> None:
    off, on = ({(m["kind"], m["metadata"]["name"]) for m in render(*values)} for values in ((), (ON,)))
    assert off < on
    assert on - off == {
        *(("ClusterRole", f"{RIGHTS}-{name}") for name in ("tenants", "tenant", "sandboxes")),
        ("ClusterRole", "sandpod-gateway-sandpod-sandboxes"),
        ("ClusterRoleBinding", f"{RIGHTS}-tenants"),
        ("ConfigMap", "sandpod-operator-tenant"),
        *((kind, "sandpod-gateway-tenants") for kind in ("Role", "RoleBinding")),
        *((f"ValidatingAdmissionPolicy{part}", "tenants.sandpod.sandpod") for part in ("", "Binding")),
        *(("ValidatingAdmissionPolicyBinding", f"sandboxes.sandpod.sandpod{p}-tenants") for p in ("", "-secrets")),
    }


@pytest.mark.promise("tenants-on-first-use", "pod-security")
def test_such_a_tenant_gets_all_that_one_of_the_values_gets(tmp_path: Path) -> None:
    own = {
        "quota": {"hard": {"pods": "7"}},
        "limitRange": {"max": {"cpu": "2"}},
        "templates": {"default": {"runtimeClassName": "own"}},
        "pools": {"default": {"replicas": 3, "autoscaling": {"enabled": True, "maxReplicas": 4}}},
    }
    manifests = rendered(tmp_path, tenants={"red": own}, tenantsOnFirstUse={"enabled": True, "each": own})
    chart = named(manifests, f"{NAMESPACE}-red")
    made = named([each for _, each in content(manifests).build("blue", "sbx-blue", "sandpod")], "sbx-blue")
    # Their rights come from roles that are there once.
    roles = {key: chart.pop(key) for key in list(chart) if key[0] == "Role"}
    assert {name for _, name in roles} == {"sandpod-gateway", "sandpod-operator"}
    binding = made.pop(("RoleBinding", "sandpod-operator-tenant"))
    assert binding["roleRef"]["name"] == f"{RIGHTS}-tenant"
    for component in ("gateway", "operator"):
        reference = made["RoleBinding", f"sandpod-{component}"]["roleRef"]
        role = only(manifests, "ClusterRole", reference["name"])
        assert role["rules"] == roles["Role", f"sandpod-{component}"]["rules"]
        reference |= {"kind": "Role", "name": f"sandpod-{component}"}
    labels = made["Namespace", "here"]["metadata"]["labels"]
    assert (labels.pop("sandpod.dev/tenant"), labels.pop("sandpod.dev/release-namespace")) == ("blue", "sandpod")
    assert made == chart
    policy = only(manifests, "ValidatingAdmissionPolicy", "sandboxes.sandpod.sandpod")
    assert "['gvisor','kata','own']" in json.dumps(policy)


def test_runtime_class_of_such_tenants_alone_is_allowed_too(tmp_path: Path) -> None:
    own = {"default": {"runtimeClassName": "own"}}
    manifests = rendered(tmp_path, tenantsOnFirstUse={"enabled": True, "each": {"templates": own}})
    policy = only(manifests, "ValidatingAdmissionPolicy", "sandboxes.sandpod.sandpod")
    assert "['gvisor','kata','own']" in json.dumps(policy)


def test_what_the_operator_makes_says_that_helm_does_not_look_after_it() -> None:
    for _, each in content(render(ON)).build("red", "sbx-red", "sandpod"):
        assert each["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "sandpod-operator"
        assert "helm.sh" not in json.dumps(each)
        assert "NAMESPACE" not in json.dumps(each)


def test_deny_all_quota_and_limits_are_there_before_anything_can_run_and_the_gateway_comes_last() -> None:
    kinds = [each["kind"] for _, each in content(render(ON)).build("red", "sbx-red", "sandpod")]
    order = ["Namespace", "RoleBinding", "RoleBinding", "NetworkPolicy", "ResourceQuota", "LimitRange"]
    assert kinds == [*order, "SandboxTemplate", "SandboxPool", "RoleBinding"]


def test_gateway_and_operator_are_told_and_changed_contents_make_new_operators(tmp_path: Path) -> None:
    def text(manifests: list[Manifest], program: str) -> Any:
        return yaml.safe_load(only(manifests, "ConfigMap", f"sandpod-{program}-config")["data"]["config.yaml"])

    manifests = rendered(tmp_path, tenantsOnFirstUse={"enabled": True, "maximum": 7})
    kubernetes = Settings.model_validate(text(manifests, "gateway")).kubernetes
    assert (kubernetes.first_use_namespace, kubernetes.first_use_limit) == ("sandpod", 7)
    found = OperatorSettings(**text(manifests, "operator"))
    assert (str(found.tenant_manifests), found.tenant_prefix, found.max_tenants) == (
        *("/etc/sandpod/tenant.yaml", "sandpod-sandboxes-"),
        7,
    )
    pods = [
        only(render(*values), "Deployment", "sandpod-operator")["spec"]["template"]
        for values in ((ON,), (ON, "tenantsOnFirstUse.each.quota.enabled=false"))
    ]
    [container] = pods[0]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(found.tenant_manifests) in mounts
    assert pods[0]["metadata"] != pods[1]["metadata"]


@pytest.mark.promise("tenants-on-first-use", "least-rights")
def test_rights_for_it_are_these_and_no_more() -> None:
    manifests = render(ON)
    everywhere = rules(only(manifests, "ClusterRole", f"{RIGHTS}-tenants"))
    roles = ":".join(("clusterroles", f"{RIGHTS}-tenant", f"{RIGHTS}-sandboxes", "sandpod-gateway-sandpod-sandboxes"))
    assert everywhere == {
        *((verb, "namespaces") for verb in ("get", "create", "patch")),
        *((verb, "rolebindings") for verb in ("create", "patch")),
        ("bind", roles),
    }
    inside = rules(only(manifests, "ClusterRole", f"{RIGHTS}-tenant"))
    filled = ("resourcequotas", "limitranges", "horizontalpodautoscalers")
    assert inside == {
        *((verb, kind) for kind in filled for verb in ("list", "create", "patch", "delete")),
        *((verb, kind) for kind in ("sandboxtemplates", "sandboxpools") for verb in ("create", "patch", "delete")),
    }
    assert rules(only(manifests, "Role", "sandpod-gateway-tenants")) == {
        (verb, "sandboxtenants") for verb in ("list", "watch", "create")
    }
    own = rules(only(manifests, "Role", "sandpod-operator", "sandpod"))
    assert own - rules(only(render(), "Role", "sandpod-operator", "sandpod")) == {
        *((verb, "sandboxtenants") for verb in ("get", "list", "watch")),
        ("patch", "sandboxtenants/status"),
    }
    # Nothing else is granted everywhere.
    bound = [m["roleRef"]["name"] for m in manifests if m["kind"] == "ClusterRoleBinding"]
    assert sorted(bound) == [f"{RIGHTS}-nodes", f"{RIGHTS}-tenants"]


def test_policies_of_sandboxes_are_bound_to_tenants_by_the_label_that_the_operators_policy_protects() -> None:
    manifests = render(ON)
    for policy in ("sandboxes.sandpod.sandpod", "sandboxes.sandpod.sandpod-secrets"):
        bound = only(manifests, "ValidatingAdmissionPolicyBinding", f"{policy}-tenants")["spec"]
        assert bound["policyName"] == policy
        assert bound["matchResources"]["namespaceSelector"]["matchExpressions"] == [
            {"key": "sandpod.dev/release-namespace", "operator": "In", "values": ["sandpod"]}
        ]
    protecting = only(manifests, "ValidatingAdmissionPolicyBinding", "tenants.sandpod.sandpod")["spec"]
    assert protecting == {"policyName": "tenants.sandpod.sandpod", "validationActions": ["Deny"]}
    # It goes with the rights, whatever is done about the sandboxes' own policy.
    without = render(ON, "sandboxes.admissionPolicy.enabled=false")
    assert only(without, "ValidatingAdmissionPolicy", "tenants.sandpod.sandpod")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["tenantsOnFirstUse.each.quotas=1"], "additional properties 'quotas' not allowed"),
        (["tenantsOnFirstUse.maximum=0"], "at '/tenantsOnFirstUse/maximum'"),
        (["tenantsOnFirstUse.enabled=null"], "missing property 'enabled'"),
        ([ON, "tenantsOnFirstUse.each.pools.gpu.replicas=1"], "add tenantsOnFirstUse.each.templates.gpu."),
        ([ON, "tenantsOnFirstUse.each.templates.large.hostUsers=true"], 'each.templates has no template "default"'),
        (["tenantsOnFirstUse.each.namespace=x"], "each tenant gets one of its own: leave it out."),
        ([ON, f"sandboxes.namespace={'a' * 62}"], "leaves no room for a tenant's name"),
        (["gateway.config.kubernetes.first_use_namespace=x"], "'first_use_namespace' not allowed"),
        (["operator.config.tenant_prefix=kube-"], "'tenant_prefix' not allowed"),
    ],
)
def test_values_that_can_not_be_are_refused_with_the_next_step(values: list[str], sentence: str) -> None:
    assert sentence in refusal(*values)
