"""What the chart allows: pods that a restricted namespace takes, and roles with nothing more than is used."""

import re
from pathlib import Path

import pytest
import yaml

from sandpod_api import names
from sandpod_api.types import NetworkProfile
from sandpod_gateway.backends.kubernetes.cluster import RIGHTS, SECRET_RIGHTS, VIEW_RIGHTS
from sandpod_operator.manifests.pod import build_pod
from support.chart.render import CHART, KUBERNETES, Manifest, helm, only, pod_specs, render, template
from support.operator.world import a_sandbox, a_template, settings

SANDBOXES = "sandpod-sandboxes"
WITH_ALL = ("ingress.enabled=true", "ingress.hosts={x.example}", "tls.secretName=t", "tests.keySecret=k")


def roles() -> list[Manifest]:
    return [m for m in render() if m["kind"] == "Role"]


@pytest.mark.promise("pod-security")
@pytest.mark.parametrize("values", [(), WITH_ALL], ids=["defaults", "all"])
def test_every_pod_meets_pod_security_restricted_and_has_a_read_only_root(values: tuple[str, ...]) -> None:
    specs = dict(pod_specs(render(*values)))
    assert set(specs) == {"sandpod-gateway", "sandpod-operator", "sandpod-gateway-test"}
    for spec in specs.values():
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
        assert {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} <= {
            "configMap",
            "projected",
            "secret",
            "emptyDir",
        }


def test_no_secret_is_in_an_environment_a_command_or_a_config_map(tmp_path: Path) -> None:
    """Keys are hashed, yet stay in a Secret; a Secret reaches a pod as a file."""
    entry = {"name": "laptop", "user": "alice", "hash": f"sha256:{'ab' * 32}", "created": "2026-01-01T00:00:00Z"}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"auth": {"keys": [entry]}}), encoding="utf-8")
    made = render(*WITH_ALL, files=(file,))
    seen = 0
    for _, spec in pod_specs(made):
        for container in spec["containers"]:
            assert not re.search("secret(Key)?Ref", yaml.safe_dump(container))
            seen += 1
    assert seen == 3
    assert {m["kind"] for m in made if entry["hash"] in yaml.safe_dump(m)} == {"Secret"}
    mounted = {v["secret"]["secretName"] for _, spec in pod_specs(made) for v in spec["volumes"] if "secret" in v}
    assert mounted == {"t", "k"}  # the certificate, and the Helm test's key; the gateway reads the others by the API


def test_only_gateway_and_operator_have_a_service_account_token() -> None:
    mounted = {name: spec["automountServiceAccountToken"] for name, spec in pod_specs(render())}
    assert mounted == {"sandpod-gateway": True, "sandpod-operator": True, "sandpod-gateway-test": False}
    accounts = [m for m in render() if m["kind"] == "ServiceAccount"]
    assert [account["automountServiceAccountToken"] for account in accounts] == [False, False]


def test_nothing_is_granted_cluster_wide_but_a_look_at_nodes_unless_that_is_switched_off() -> None:
    [role, binding] = [m for m in render() if m["kind"].startswith("ClusterRole")]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
        {"apiGroups": ["node.k8s.io"], "resources": ["runtimeclasses"], "verbs": ["get"]},
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == ["sandpod-operator"]
    assert not [m for m in render("operator.readNodes=false") if m["kind"].startswith("ClusterRole")]


LINKS = "sandpod-gateway-links"
SECRETS = "sandpod-gateway-secrets"
USAGE = "sandpod-gateway-usage"


def test_no_role_has_a_wildcard_or_touches_secrets_but_that_of_links_and_keys() -> None:
    for role in roles():
        if role["metadata"]["name"] in {SECRETS, USAGE}:
            continue
        for rule in role["rules"]:
            if role["metadata"]["namespace"] == SANDBOXES and rule["resources"] == ["secrets"]:
                assert rule["verbs"] == ["get", "create"]
                continue
            if rule["resources"] == ["configmaps"]:
                assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["sandpod-operator-config"])
                continue
            said = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not {"*", "secrets", "configmaps", "serviceaccounts", "escalate", "bind", "impersonate"} & said


def test_gateway_may_patch_the_secret_of_links_and_read_that_of_keys_and_create_none() -> None:
    core = {"apiGroups": [""], "resources": ["secrets"]}
    assert only(render(), "Role", SECRETS, "sandpod")["rules"] == [
        {**core, "resourceNames": [LINKS], "verbs": ["get", "patch"]},
        {**core, "resourceNames": ["sandpod-keys"], "verbs": ["get", "list", "watch"]},
    ]
    changing = only(render("auth.changeKeys=true"), "Role", SECRETS, "sandpod")["rules"]
    assert changing[1] == {**core, "resourceNames": ["sandpod-keys"], "verbs": ["get", "list", "watch", "patch"]}
    secret = only(render(), "Secret", LINKS, "sandpod")
    assert not {"data", "stringData", "immutable"} & set(secret)  # the gateway's content is never the chart's to change


def test_gateway_may_change_config_maps_of_its_own_namespace_and_by_policy_those_of_usage_alone() -> None:
    [rule] = only(render(), "Role", USAGE, "sandpod")["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    }
    policy = only(render(), "ValidatingAdmissionPolicy", "usage.sandpod.sandpod")["spec"]
    assert policy["failurePolicy"] == "Fail"
    [gateway] = policy["matchConditions"]
    assert gateway["expression"] == "request.userInfo.username == 'system:serviceaccount:sandpod:sandpod-gateway'"
    [validation] = policy["validations"]
    assert f"startsWith('{USAGE}-')" in validation["expression"]
    binding = only(render(), "ValidatingAdmissionPolicyBinding", "usage.sandpod.sandpod")["spec"]
    assert binding["validationActions"] == ["Deny"]
    assert binding["matchResources"]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "sandpod"}
    config = yaml.safe_load(only(render(), "ConfigMap", "sandpod-gateway-config")["data"]["config.yaml"])
    assert config["kubernetes"]["usage"] == f"sandpod/{USAGE}"


def test_two_renders_are_the_same() -> None:
    first, second = (
        helm(
            "template",
            "sandpod",
            str(CHART),
            *KUBERNETES,
            "--set",
            "ingress.enabled=true,ingress.hosts={x.example.com}",
        )
        for _ in range(2)
    )
    assert first.returncode == 0
    assert first.stdout == second.stdout


def test_role_of_the_gateway_is_what_it_uses_and_no_more() -> None:
    role = only(render(), "Role", "sandpod-gateway")
    granted = {(verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    wanted = (*RIGHTS, *VIEW_RIGHTS, *SECRET_RIGHTS)
    assert granted == {(verb, f"{resource}/{sub}" if sub else resource) for verb, resource, sub in wanted}


def test_gateway_may_scale_pools_only_where_a_value_says_so_and_change_nothing_else_of_them() -> None:
    role = only(render("gateway.config.kubernetes.scale_pools=true"), "Role", "sandpod-gateway")
    rules = [rule for rule in role["rules"] if any("sandboxpools" in each for each in rule["resources"])]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["sandboxpools"], ["list"]),
        (["sandboxpools/scale"], ["patch"]),
    ]


def test_without_secrets_for_sandboxes_the_gateway_has_no_right_to_any_among_them() -> None:
    manifests = render("gateway.config.kubernetes.secrets=false")
    role = only(manifests, "Role", "sandpod-gateway")
    assert not [rule for rule in role["rules"] if "secrets" in rule["resources"]]
    assert not [m for m in manifests if m["metadata"]["name"].endswith("-secrets") and "Admission" in m["kind"]]


def test_only_the_gateway_may_exec_and_only_among_sandboxes() -> None:
    exec_roles = [
        (role["metadata"]["namespace"], role["metadata"]["name"])
        for role in roles()
        if any("pods/exec" in rule["resources"] for rule in role["rules"])
    ]
    assert exec_roles == [(SANDBOXES, "sandpod-gateway")]


def test_each_role_is_bound_to_the_one_account_of_its_name() -> None:
    bindings = [m for m in render() if m["kind"] == "RoleBinding"]
    assert {(b["metadata"]["namespace"], b["metadata"]["name"]) for b in bindings} == {
        (r["metadata"]["namespace"], r["metadata"]["name"]) for r in roles()
    }
    for binding in bindings:
        name = binding["metadata"]["name"]
        assert binding["roleRef"]["name"] == name
        account = name.removesuffix("-secrets").removesuffix("-usage")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "sandpod"}]


@pytest.mark.promise("pod-security")
def test_sandbox_namespace_is_restricted_and_closed_for_every_pod() -> None:
    namespace = only(render(), "Namespace", SANDBOXES)
    assert {
        mode: namespace["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"]
        for mode in ("enforce", "warn", "audit")
    } == {"enforce": "restricted", "warn": "restricted", "audit": "restricted"}
    policies = [m for m in render() if m["kind"] == "NetworkPolicy" and m["metadata"]["namespace"] == SANDBOXES]
    assert [policy["spec"] for policy in policies] == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]
    # The operator keeps a policy of its own by server-side apply; one name for both would make them fight.
    assert policies[0]["metadata"]["name"] != names.POLICY_DENY_ALL


def test_namespaces_and_the_policy_that_closes_them_outlive_the_release_unless_asked_for() -> None:
    def kept(*values: str) -> set[str]:
        policy = {"helm.sh/resource-policy": "keep"}
        return {m["kind"] for m in render(*values) if policy.items() <= m["metadata"].get("annotations", {}).items()}

    assert kept() == {"Namespace", "NetworkPolicy"}
    assert kept("sandboxes.keepNamespaces=false") == set()
    policies = [m for m in render() if m["kind"] == "NetworkPolicy" and "annotations" in m["metadata"]]
    assert [policy["metadata"]["namespace"] for policy in policies] == [SANDBOXES]


def test_injectors_are_kept_out_of_the_sandboxes_and_no_label_weakens_pod_security() -> None:
    metadata = only(render(), "Namespace", SANDBOXES)["metadata"]
    assert (metadata["labels"]["istio-injection"], metadata["annotations"]["linkerd.io/inject"]) == (
        "disabled",
        "disabled",
    )
    place = "sandboxes.namespaceLabels"
    changed = only(
        render(f"{place}.team=a", f"{place}.istio-injection=null", rf"{place}.pod-security\.kubernetes\.io/enforce=b"),
        "Namespace",
        SANDBOXES,
    )["metadata"]["labels"]
    assert (changed["team"], changed["pod-security.kubernetes.io/enforce"]) == ("a", "restricted")
    assert "istio-injection" not in changed


def test_policies_open_the_gateway_for_clients_and_both_for_dns_and_the_api_server_only() -> None:
    for component, more in (("gateway", [8000, 443]), ("operator", [])):
        spec = only(render(), "NetworkPolicy", f"sandpod-{component}")["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["ingress"][0] == {"ports": [{"port": "http", "protocol": "TCP"}]}
        ports = [port["port"] for rule in spec["egress"] for port in rule["ports"]]
        assert ports == [53, 53, 443, 6443, *more]


def test_gateway_may_reach_the_package_index_alone_and_not_where_it_installs_none() -> None:
    def rules(*values: str) -> list[dict[str, object]]:
        return list(only(render(*values), "NetworkPolicy", "sandpod-gateway")["spec"]["egress"])[3:]

    narrow = ("networkPolicy.packageIndexPorts={8443}", "networkPolicy.packageIndexCidrs={10.1.0.0/16}")
    assert rules(*narrow) == [
        {"ports": [{"port": 8443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}
    ]
    assert rules("gateway.config.packages.enabled=false") == []


def test_narrowed_gateway_still_lets_the_helm_test_and_other_gateways_in() -> None:
    manifests = render("networkPolicy.gatewayFrom[0].podSelector.matchLabels.app=proxy")
    spec = only(manifests, "NetworkPolicy", "sandpod-gateway")["spec"]
    test = only(manifests, "Pod", "sandpod-gateway-test")
    chosen = [peer["podSelector"]["matchLabels"] for peer in spec["ingress"][0]["from"]]
    assert chosen[0] == {"app": "proxy"}
    assert chosen[1].items() <= test["metadata"]["labels"].items()
    gateway = only(manifests, "Deployment", "sandpod-gateway")["spec"]["template"]
    assert chosen[2].items() <= gateway["metadata"]["labels"].items()


def test_gateways_find_and_reach_each_other() -> None:
    manifests = render()
    service = only(manifests, "Service", "sandpod-peers")["spec"]
    labels = only(manifests, "Deployment", "sandpod-gateway")["spec"]["template"]["metadata"]["labels"]
    assert service["clusterIP"] == "None"
    [gateway] = only(manifests, "Deployment", "sandpod-gateway")["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each for each in gateway["env"]}
    assert env["SANDPOD_PEERS__NAME"]["value"] == "sandpod-peers"
    assert env["SANDPOD_PEERS__ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert service["selector"].items() <= labels.items()
    (rule,) = only(manifests, "NetworkPolicy", "sandpod-gateway")["spec"]["egress"][2:3]
    assert rule["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert rule["ports"][0]["port"] == service["ports"][0]["port"]


def test_namespace_that_exists_is_left_alone() -> None:
    assert not [m for m in render("sandboxes.createNamespace=false") if m["kind"] == "Namespace"]


POLICY = "sandboxes.sandpod.sandpod"


def test_weaker_pods_are_refused_among_the_sandboxes_and_nowhere_else() -> None:
    policy = only(render(), "ValidatingAdmissionPolicy", POLICY)["spec"]
    binding = only(render(), "ValidatingAdmissionPolicyBinding", POLICY)["spec"]
    assert policy["failurePolicy"] == "Fail"
    assert {
        (resource, *rule["operations"])
        for rule in policy["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    } == {
        ("pods", "CREATE", "UPDATE"),
        ("pods/ephemeralcontainers", "UPDATE"),
        ("pods/resize", "UPDATE"),
    }
    assert binding == {
        "policyName": POLICY,
        "validationActions": ["Deny"],
        "matchResources": {
            "namespaceSelector": {
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [SANDBOXES]}]
            }
        },
    }


def test_each_rule_says_what_is_wrong_and_what_must_be() -> None:
    rules = only(render(), "ValidatingAdmissionPolicy", POLICY)["spec"]["validations"]
    messages = [rule["message"] for rule in rules]
    assert len(set(messages)) == len(messages)
    for rule in rules:
        wrong, _, right = rule["message"].partition(": ")
        assert wrong
        assert right.endswith(".")
        assert rule["reason"] == "Forbidden"
        # By these words the operator tells the quota's refusals from all others.
        assert "exceeded quota" not in rule["message"]


def test_runtime_classes_of_the_templates_and_those_of_the_values_are_allowed() -> None:
    def rule(field: str, *values: str) -> str:
        rules = only(render(*values), "ValidatingAdmissionPolicy", POLICY)["spec"]["validations"]
        [found] = [rule["expression"] for rule in rules if field in rule["expression"]]
        return str(found)

    assert rule("runtimeClassName").endswith(" in ['gvisor','kata']")
    values = ("sandboxes.templates.vm.runtimeClassName=kata-qemu", "sandboxes.admissionPolicy.runtimeClassNames={own}")
    assert rule("runtimeClassName", *values).endswith(" in ['own','kata-qemu']")
    assert rule("priorityClassName").endswith(" in []")
    allowed = "sandboxes.admissionPolicy.priorityClassNames={batch}"
    assert rule("priorityClassName", allowed).endswith(" in ['batch']")


def test_containers_of_a_pod_are_those_of_the_operators_and_no_other() -> None:
    made = a_template(runner="Injected", image="ruby:3.3", runtimeClassName="gvisor")
    spec = build_pod(a_sandbox(), made, NetworkProfile(name="none"), settings())["spec"]
    rules = only(render(), "ValidatingAdmissionPolicy", POLICY)["spec"]["validations"]
    [rule] = [rule for rule in rules if "c.name in [" in rule["expression"]]
    named = re.findall(r"'(\w+)'", rule["expression"])
    assert sorted(named) == sorted(each["name"] for each in (*spec["containers"], *spec["initContainers"]))


def test_labels_that_must_stay_are_those_of_the_operators_pods() -> None:
    pod = build_pod(a_sandbox(), a_template(), NetworkProfile(name="none"), settings())
    rules = only(render(), "ValidatingAdmissionPolicy", POLICY)["spec"]["validations"]
    [rule] = [rule for rule in rules if "metadata.?labels" in rule["expression"]]
    fixed = [label for label in pod["metadata"]["labels"] if f"'{label}'" in rule["expression"]]
    assert set(pod["metadata"]["labels"]) - set(fixed) == {names.LABEL_NETWORK}
    assert names.LABEL_NETWORK in rule["message"]


def test_longest_deadline_of_a_pod_is_that_of_a_warm_one() -> None:
    pod = build_pod(a_sandbox(), a_template(), NetworkProfile(name="none"), settings())
    rules = only(render(), "ValidatingAdmissionPolicy", POLICY)["spec"]["validations"]
    [rule] = [rule for rule in rules if "activeDeadlineSeconds" in rule["expression"]]
    assert f"<= {pod['spec']['activeDeadlineSeconds']}" in rule["expression"]
    assert f"to {pod['spec']['activeDeadlineSeconds']} " in rule["message"]


def test_policy_can_be_left_out() -> None:
    kinds = {m["kind"] for m in render("sandboxes.admissionPolicy.enabled=false")}
    assert not {kind for kind in kinds if kind.startswith("ValidatingAdmission")}


def test_cluster_scoped_objects_of_two_releases_have_different_names() -> None:
    def names_of(release: str, namespace: str) -> set[str]:
        printed = template(release=release, namespace=namespace)
        objects = [m for m in yaml.safe_load_all(printed) if m and m["kind"].startswith("ValidatingAdmission")]
        return {m["metadata"]["name"] for m in objects}

    found = [
        names_of(release, namespace) for release, namespace in (("a", "b-c"), ("a-b", "c"), ("a", "d"), ("e", "d"))
    ]
    assert [len(each) for each in found] == [3] * 4  # for pods, and for the gateway's Secrets and ConfigMaps
    assert len(set.union(*found)) == 12
