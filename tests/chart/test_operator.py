"""The operator as the chart installs it, and what it finds in the sandboxes' namespace."""

import json

import pytest

from sandpod_api.types import SandboxPool, SandboxTemplate, parse_quantity
from sandpod_operator.settings import OperatorSettings
from support.chart.render import Manifest, only, render


def container(*values: str) -> Manifest:
    deployment = only(render(*values), "Deployment", "sandpod-operator")
    found: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def settings(monkeypatch: pytest.MonkeyPatch, *values: str) -> OperatorSettings:
    for variable in container(*values)["env"]:
        # The pod's address is put in by Kubernetes.
        monkeypatch.setenv(variable["name"], variable.get("value", "10.244.0.9").replace("$(POD_IP)", "10.244.0.9"))
    return OperatorSettings()


def test_operator_takes_the_environment_that_the_chart_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch)
    assert found.namespaces == ("sandpod-sandboxes",)
    assert found.namespace == "sandpod"
    assert found.log_format == "json"
    assert found.peer == f"10.244.0.9:{found.http_port}"
    assert found.http_port == container()["ports"][0]["containerPort"] == 8081


def test_config_values_reach_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, "operator.config.cluster_dns=10.0.0.10:53", "operator.config.resync_interval=60")
    assert (found.cluster_dns, found.resync_interval) == ("10.0.0.10:53", 60)


def test_runner_of_foreign_images_comes_from_the_sandboxes_image() -> None:
    values = ("sandboxes.image.registry=r.example", "sandboxes.image.tag=v7")
    given = {v["name"]: v.get("value") for v in container(*values)["env"]}
    assert given["SANDPOD_OPERATOR_RUNNER_IMAGE"] == "r.example/sandpod/sandbox:v7"


def test_every_environment_variable_of_the_operator_is_one_that_it_reads() -> None:
    known = {f"SANDPOD_OPERATOR_{name.upper()}" for name in OperatorSettings.model_fields}
    given = {v["name"] for v in container()["env"] if v["name"].startswith("SANDPOD_")}
    assert given <= known


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
    wanted = SandboxTemplate.model_validate(only(render(), "SandboxTemplate", "default")).spec.resources
    pods = int(hard["pods"])
    # Kubernetes refuses all that it counts of a resource that has just been defined, for up to five minutes.
    assert not [name for name in hard if name.startswith("count/") and "sandpod" in name]
    for name, each in {
        "requests.cpu": wanted.cpu_request,
        "limits.cpu": wanted.cpu,
        "requests.memory": wanted.memory_request,
        "limits.memory": wanted.memory,
        "requests.ephemeral-storage": wanted.ephemeral_storage,
        "limits.ephemeral-storage": wanted.ephemeral_storage,
    }.items():
        assert parse_quantity(hard[name]) >= pods * parse_quantity(each), name


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
    told = next(e["value"] for e in container(more)["env"] if e["name"] == "SANDPOD_OPERATOR_NAMESPACES")
    assert told == "sandpod-sandboxes,team-a,team-b"
    [binding] = [m for m in render(more) if m["kind"] == "ValidatingAdmissionPolicyBinding"]
    [matched] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert matched["values"] == ["sandpod-sandboxes", "team-a", "team-b"]
    assert [m for m in render(f"{more},sandboxes.createNamespace=false") if m["kind"] == "Namespace"] == []
