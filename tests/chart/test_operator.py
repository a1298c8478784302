"""The operator as the chart installs it, and what it finds in the sandboxes' namespace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sandpod_api.types import SandboxPool, SandboxTemplate, parse_quantity
from sandpod_operator.__main__ import read_settings
from sandpod_operator.settings import OperatorSettings
from support.chart.render import Manifest, only, render


def container(*values: str) -> Manifest:
    deployment = only(render(*values), "Deployment", "sandpod-operator")
    found: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def config(*values: str, files: tuple[Path, ...] = ()) -> str:
    text: str = only(render(*values, files=files), "ConfigMap", "sandpod-operator-config")["data"]["config.yaml"]
    return text


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., OperatorSettings]:
    """Reads what the operator reads in its pod: the ConfigMap, and the environment."""

    def read(*values: str, files: tuple[Path, ...] = ()) -> OperatorSettings:
        for variable in container(*values)["env"]:
            # The pod's address is put in by Kubernetes.
            given = variable.get("value", "10.244.0.9").replace("$(POD_IP)", "10.244.0.9")
            monkeypatch.setenv(variable["name"], given)
        file = tmp_path / "config.yaml"
        file.write_text(config(*values, files=files), encoding="utf-8")
        found = read_settings(file)
        assert found is not None
        return found

    return read


def test_operator_takes_the_settings_that_the_chart_gives_it(settings: Callable[..., OperatorSettings]) -> None:
    found = settings()
    assert found.namespaces == ("sandpod-sandboxes",)
    assert found.namespace == "sandpod"
    assert found.lease_owner == "sandpod-operator-config"
    assert found.log_format == "json"
    assert found.peer == f"10.244.0.9:{found.http_port}"
    assert found.http_port == container()["ports"][0]["containerPort"] == 8081
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert container()["command"] == ["sandpod-operator", "--config", "/etc/sandpod/config.yaml"]
    assert "/etc/sandpod/config.yaml" in mounts


def test_config_values_reach_the_operator(settings: Callable[..., OperatorSettings], tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    # As a file, since `--set` gives helm another type of number.
    values.write_text("operator: {config: {retention: 1000000, probe_interval: 2147483648}}", encoding="utf-8")
    found = settings("operator.config.cluster_dns=10.0.0.10:53", "operator.config.resync_interval=60", files=(values,))
    assert (found.cluster_dns, found.resync_interval) == ("10.0.0.10:53", 60)
    assert (found.retention, found.probe_interval) == (1_000_000, 2_147_483_648)


def test_peer_of_the_values_takes_the_place_of_the_operators_own_pod() -> None:
    assert not [v for v in container("operator.config.peer=10.0.0.1:80")["env"] if v["name"] == "SANDPOD_OPERATOR_PEER"]
    assert "peer: 10.0.0.1:80" in config("operator.config.peer=10.0.0.1:80")


def test_changed_setting_makes_new_pods() -> None:
    def checksum(*values: str) -> str:
        template = only(render(*values), "Deployment", "sandpod-operator")["spec"]["template"]
        text: str = template["metadata"]["annotations"]["checksum/config"]
        return text

    assert checksum("operator.config.log_level=DEBUG") != checksum()


def test_runner_of_foreign_images_comes_from_the_sandboxes_image() -> None:
    given = yaml.safe_load(config("sandboxes.image.registry=r.example", "sandboxes.image.tag=v7"))
    assert given["runner_image"] == "r.example/sandpod/sandbox:v7"


def test_probes_and_metrics_are_on_the_health_port() -> None:
    found = container()
    assert found["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    service = only(render(), "Service", "sandpod-operator")
    assert service["spec"]["ports"][0]["targetPort"] == "http"


def test_both_components_have_two_replicas_spread_over_nodes() -> None:
    for component in ("gateway", "operator"):
        deployment = only(render(), "Deployment", f"sandpod-{component}")["spec"]
        assert deployment["replicas"] == 2
        (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == deployment["selector"]
        budget = only(render(), "PodDisruptionBudget", f"sandpod-{component}")["spec"]
        assert budget == {"maxUnavailable": 1, "selector": deployment["selector"]}


def test_default_template_and_pool_are_what_the_types_take() -> None:
    template = SandboxTemplate.model_validate(only(render(), "SandboxTemplate", "default"))
    pool = SandboxPool.model_validate(only(render(), "SandboxPool", "default"))
    assert template.spec.image == "sandpod/sandbox:0.1.0"
    assert template.spec.host_users is None
    assert template.spec.preimport == ["numpy", "pandas", "matplotlib.pyplot"]
    assert (pool.spec.template_ref.name, pool.spec.replicas) == ("default", 2)


def test_added_template_stands_beside_the_default_one_and_null_removes_it() -> None:
    def named(*values: str) -> set[str]:
        return {m["metadata"]["name"] for m in render(*values) if m["kind"] == "SandboxTemplate"}

    assert named("sandboxes.templates.gvisor.runtimeClassName=gvisor") == {"default", "gvisor"}
    only_gvisor = ("sandboxes.templates.default=null", "sandboxes.pools.default=null")
    assert named("sandboxes.templates.gvisor.runtimeClassName=gvisor", *only_gvisor) == {"gvisor"}


def test_image_of_the_values_goes_to_all_templates_that_name_none() -> None:
    values = ("sandboxes.image.registry=r.example", "sandboxes.image.tag=dev", "sandboxes.templates.own.image=own:1")
    images = {m["metadata"]["name"]: m["spec"]["image"] for m in render(*values) if m["kind"] == "SandboxTemplate"}
    assert images == {"default": "r.example/sandpod/sandbox:dev", "own": "own:1"}


def test_quota_carries_as_many_default_sandboxes_as_it_has_pods() -> None:
    hard = only(render(), "ResourceQuota", "sandpod-namespace")["spec"]["hard"]
    template = SandboxTemplate.model_validate(only(render(), "SandboxTemplate", "default")).spec
    wanted = template.resources
    pods = int(hard["pods"])
    # Kubernetes refuses all that it counts of a resource that has just been defined, for up to five minutes.
    assert not [name for name in hard if name.startswith("count/") and "sandpod" in name]
    for name, each in {
        "requests.cpu": wanted.cpu_request,
        "limits.cpu": wanted.cpu,
        "requests.memory": wanted.memory_request,
        "limits.memory": wanted.memory,
        "requests.ephemeral-storage": wanted.ephemeral_storage,
    }.items():
        assert parse_quantity(hard[name]) >= pods * parse_quantity(each), name
    most = parse_quantity(wanted.ephemeral_storage) + parse_quantity(template.packages_size)
    assert parse_quantity(hard["limits.ephemeral-storage"]) >= pods * most


def test_limit_range_fills_in_what_the_quota_asks_every_container_for() -> None:
    (limits,) = only(render(), "LimitRange", "sandpod-namespace")["spec"]["limits"]
    names = {"cpu", "memory", "ephemeral-storage"}
    assert limits["type"] == "Container"
    assert set(limits["default"]) == set(limits["defaultRequest"]) == set(limits["max"]) == names


def test_service_monitors_are_for_both_components_when_asked_for() -> None:
    monitors = [
        m["metadata"]["name"]
        for m in render("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus")
        if m["kind"] == "ServiceMonitor" and m["metadata"]["labels"]["release"] == "prometheus"
    ]
    assert monitors == ["sandpod-gateway", "sandpod-operator"]
    assert not [m for m in render() if m["kind"] == "ServiceMonitor"]


def test_each_more_namespace_has_all_that_the_first_one_has_but_the_gateway() -> None:
    def of(namespace: str, *values: str) -> list[Manifest]:
        """Everything in a namespace, and the namespace, without its name."""
        found = [m for m in render(*values) if namespace in {m["metadata"].get("namespace"), m["metadata"]["name"]}]
        return [json.loads(json.dumps(m).replace(f'"{namespace}"', '"here"')) for m in found]

    more = "sandboxes.moreNamespaces={team-a,team-b}"
    first = of("sandpod-sandboxes", more)
    assert first == of("sandpod-sandboxes")
    kept = [
        m
        for m in first
        if m["kind"] not in {"SandboxTemplate", "SandboxPool"} and m["metadata"]["name"] != "sandpod-gateway"
    ]
    assert {m["kind"] for m in kept} == {
        *("Namespace", "ResourceQuota", "LimitRange", "NetworkPolicy", "Role", "RoleBinding")
    }
    assert of("team-a", more) == of("team-b", more) == kept
    assert yaml.safe_load(config(more))["namespaces"] == ["sandpod-sandboxes", "team-a", "team-b"]
    for policy in ("sandboxes.sandpod.sandpod", "sandboxes.sandpod.sandpod-secrets"):
        binding = only(render(more), "ValidatingAdmissionPolicyBinding", policy)
        [matched] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert matched["values"] == ["sandpod-sandboxes", "team-a", "team-b"]
    assert [m for m in render(f"{more},sandboxes.createNamespace=false") if m["kind"] == "Namespace"] == []
