"""What gateway and operator have alike: images, accounts, environment, placement, rollout."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.chart.render import ROOT, Manifest, only, pod_specs, render

BOTH: Final = pytest.mark.parametrize("component", ["gateway", "operator"])
DIGEST: Final = f"sha256:{'a' * 64}"


def deployment(component: str, *values: str, files: tuple[Path, ...] = ()) -> Manifest:
    spec: Manifest = only(render(*values, files=files), "Deployment", f"sandpod-{component}")["spec"]
    return spec


def pod(component: str, *values: str, files: tuple[Path, ...] = ()) -> Manifest:
    spec: Manifest = deployment(component, *values, files=files)["template"]["spec"]
    return spec


def images(*values: str) -> set[str]:
    manifests = render(*values)
    found = {container["image"] for _, spec in pod_specs(manifests) for container in spec["containers"]}
    return found | {m["spec"]["image"] for m in manifests if m["kind"] == "SandboxTemplate"}


def test_registry_of_all_images_is_one_value_and_an_image_may_have_its_own() -> None:
    names = ("gateway", "operator", "sandbox")
    assert images() == {f"sandpod/{name}:0.1.0" for name in names}
    assert images("global.imageRegistry=r.example") == {f"r.example/sandpod/{name}:0.1.0" for name in names}
    own = images("global.imageRegistry=r.example", "operator.image.registry=o.example")
    assert own == {
        "r.example/sandpod/gateway:0.1.0",
        "o.example/sandpod/operator:0.1.0",
        "r.example/sandpod/sandbox:0.1.0",
    }


def test_digest_takes_the_place_of_the_tag() -> None:
    values = [f"{part}.image.digest={DIGEST}" for part in ("gateway", "operator", "sandboxes")]
    assert images(*values, "gateway.image.tag=v1") == {
        f"sandpod/{n}@{DIGEST}" for n in ("gateway", "operator", "sandbox")
    }


def test_pull_secrets_are_for_every_pod_and_for_templates_that_name_none() -> None:
    manifests = render(
        *("imagePullSecrets={a,b}", "global.imagePullSecrets={g,b}"),
        *("sandboxes.templates.own.image=own:1", "sandboxes.templates.own.imagePullSecrets={mine}"),
    )
    wanted = ["g", "b", "a"]
    given = {name: [secret["name"] for secret in spec["imagePullSecrets"]] for name, spec in pod_specs(manifests)}
    assert given == {"sandpod-gateway": wanted, "sandpod-operator": wanted, "sandpod-gateway-test": wanted}
    templates = {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "SandboxTemplate"}
    assert templates["default"]["imagePullSecrets"] == wanted
    assert templates["own"]["imagePullSecrets"] == ["mine"]
    assert "imagePullSecrets" not in only(render(), "SandboxTemplate", "default")["spec"]


@BOTH
def test_account_can_be_named_or_be_one_that_exists_and_gets_the_rights(component: str) -> None:
    place = f"{component}.serviceAccount"
    for values in ([f"{place}.name=own", f"{place}.annotations.a=b"], [f"{place}.name=own", f"{place}.create=false"]):
        manifests = render(*values)
        assert pod(component, *values)["serviceAccountName"] == "own"
        bound = [
            subject["name"]
            for m in manifests
            if m["kind"] in {"RoleBinding", "ClusterRoleBinding"}
            and m["roleRef"]["name"].startswith(f"sandpod-{component}")
            for subject in m["subjects"]
        ]
        assert set(bound) == {"own"}
        accounts = [m for m in manifests if m["kind"] == "ServiceAccount" and m["metadata"]["name"] == "own"]
        assert [account["metadata"]["annotations"] for account in accounts] == (
            [] if "create" in values[1] else [{"a": "b"}]
        )


@BOTH
def test_environment_arguments_and_volumes_are_added_to_the_charts_own(component: str, tmp_path: Path) -> None:
    added: dict[str, Any] = {
        "env": {"SSL_CERT_FILE": "/ca/ca.crt", "EMPTY": "", "ODD": 'a{{ .x }} "q" $(B) #c\n'},
        "extraEnv": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"secretRef": {"name": "all"}}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({component: added}), encoding="utf-8")
    plain, made = pod(component), pod(component, files=(file,))
    container, before = made["containers"][0], plain["containers"][0]
    variables = [{"name": name, "value": value} for name, value in sorted(added["env"].items())]
    assert container["env"] == [*before["env"], *variables, *added["extraEnv"]]
    assert container["envFrom"] == added["envFrom"]
    assert container["volumeMounts"] == [*before["volumeMounts"], *added["extraVolumeMounts"]]
    assert made["volumes"] == [*plain["volumes"], *added["extraVolumes"]]


def test_arguments_of_the_gateway_come_after_its_command() -> None:
    container = pod("gateway", "gateway.extraArgs={--log-level,debug}")["containers"][0]
    assert container["command"] == ["sandpod", "serve", "--config", "/etc/sandpod/config.yaml"]
    assert container["args"] == ["--log-level", "debug"]


@BOTH
def test_probes_rollout_and_spread_are_as_the_values_say(component: str) -> None:
    made = deployment(
        component,
        f"{component}.readinessProbe.periodSeconds=9",
        f"{component}.strategy.type=Recreate",
        f"{component}.strategy.rollingUpdate=null",
        f"{component}.topologySpreadConstraints[0].maxSkew=2",
        f"{component}.topologySpreadConstraints[0].topologyKey=zone",
        f"{component}.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        f"{component}.terminationGracePeriodSeconds=77",
    )
    spec = made["template"]["spec"]
    probe = spec["containers"][0]["readinessProbe"]
    assert probe == {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 9, "timeoutSeconds": 3}
    assert made["strategy"] == {"type": "Recreate"}
    [spread] = spec["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"], spread["whenUnsatisfiable"]) == (2, "zone", "DoNotSchedule")
    assert spread["labelSelector"] == made["selector"]
    assert spec["terminationGracePeriodSeconds"] == 77


@BOTH
def test_disruption_budget_is_by_the_most_that_go_or_the_least_that_stay(component: str) -> None:
    def budget(*values: str) -> Manifest:
        spec: Manifest = only(render(*values), "PodDisruptionBudget", f"sandpod-{component}")["spec"]
        return {name: value for name, value in spec.items() if name != "selector"}

    place = f"{component}.podDisruptionBudget"
    assert budget() == {"maxUnavailable": 1}
    assert budget(f"{place}.maxUnavailable=50%") == {"maxUnavailable": "50%"}
    assert budget(f"{place}.minAvailable=0") == {"minAvailable": 0}
    assert not [
        m
        for m in render(f"{place}.enabled=false")
        if m["kind"] == "PodDisruptionBudget" and m["metadata"]["name"] == f"sandpod-{component}"
    ]


def test_autoscaler_of_the_gateway_sets_the_replicas_in_the_charts_place() -> None:
    on = "gateway.autoscaling.enabled=true"
    spec = only(render(on), "HorizontalPodAutoscaler", "sandpod-gateway")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sandpod-gateway"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 10)
    assert [metric["resource"]["name"] for metric in spec["metrics"]] == ["cpu"]
    assert "replicas" not in deployment("gateway", on)
    assert deployment("gateway")["replicas"] == deployment("operator", on)["replicas"] == 2
    assert not [m for m in render() if m["kind"] == "HorizontalPodAutoscaler"]


def test_security_contexts_of_the_example_leave_user_and_group_to_openshift() -> None:
    file = ROOT / "manifests" / "examples" / "values" / "openshift.yaml"
    for _, spec in pod_specs(render(files=(file,))):
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_object_has_the_common_labels_and_no_value_replaces_those_that_selectors_choose_by() -> None:
    values = (
        "commonLabels.team=a",
        r"commonLabels.app\.kubernetes\.io/component=b",
        r"gateway.podLabels.app\.kubernetes\.io/name=c",
    )
    for made in render(*values, "gateway.podLabels.mine=d"):
        labels = made["metadata"]["labels"]
        assert labels["team"] == "a", made["metadata"]["name"]
        assert labels["app.kubernetes.io/part-of"] == "sandpod"
        assert labels["app.kubernetes.io/component"] != "b"
    template = deployment("gateway", *values, "gateway.podLabels.mine=d")["template"]["metadata"]["labels"]
    assert template["mine"] == "d"
    assert template.items() >= deployment("gateway", *values)["selector"]["matchLabels"].items()


def test_name_override_is_the_name_label_of_pods_and_selectors() -> None:
    made = deployment("gateway", "nameOverride=runner")
    assert made["selector"]["matchLabels"]["app.kubernetes.io/name"] == "runner"
    assert made["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "runner"
    service = only(render("nameOverride=runner"), "Service", "sandpod-gateway")["spec"]
    assert service["selector"] == made["selector"]["matchLabels"]


def test_extra_objects_are_installed_and_are_templates(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    one = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "one", "namespace": "{{ .Release.Namespace }}"},
    }
    two = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two"}}
    file.write_text(yaml.safe_dump({"extraObjects": [one, two]}), encoding="utf-8")
    manifests = render(files=(file,))
    assert only(manifests, "ConfigMap", "one")["metadata"]["namespace"] == "sandpod"
    assert only(manifests, "ConfigMap", "two") == two
