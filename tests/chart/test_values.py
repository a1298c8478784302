"""The chart's values: every one described, closed against typos, and wrong combinations refused with a sentence."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from sandpod_gateway.settings import load
from support.chart.render import CHART, KUBERNETES, ROOT, helm, only, refusal, render, template

VALUES = CHART / "values.yaml"
EXAMPLES = sorted((ROOT / "manifests" / "examples" / "values").glob("*.yaml"))


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return loaded


def test_lint_is_clean_with_every_warning_an_error() -> None:
    done = helm("lint", "--strict", str(CHART), *KUBERNETES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_example_values_are_taken_and_the_settings_in_them(file: Path, tmp_path: Path) -> None:
    settings = tmp_path / "config.yaml"
    made = only(render(files=(file,)), "ConfigMap", "sandpod-gateway-config")
    settings.write_text(made["data"]["config.yaml"], encoding="utf-8")
    given = (yaml.safe_load(file.read_text(encoding="utf-8")).get("gateway") or {}).get("config") or {}
    assert load([], config=settings, program="sandpod serve").model_fields_set >= given.keys()


def test_there_are_example_values() -> None:
    named = {"ingress", "gateway-api", "tls", "production", "autoscaling", "openshift", "small", "medium", "large"}
    named |= {"tenants", "tenants-on-first-use", "quotas", "audit-file", "oidc", "sign-in-google", "sign-in-github"}
    assert {path.stem for path in EXAMPLES} >= named


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_quota_of_an_example_has_room_for_all_sandboxes_that_the_gateway_may_hand_out_and_those_that_wait(
    size: str,
) -> None:
    made = render(files=(ROOT / "manifests" / "examples" / "values" / f"{size}.yaml",))
    settings = yaml.safe_load(only(made, "ConfigMap", "sandpod-gateway-config")["data"]["config.yaml"])
    pods = settings["kubernetes"]["max_sandboxes"] + sum(
        each["spec"]["replicas"] for each in made if each["kind"] == "SandboxPool"
    )
    [quota] = [each["spec"]["hard"] for each in made if each["kind"] == "ResourceQuota"]
    resources = only(made, "SandboxTemplate", "default")["spec"]["resources"]
    asked = {
        "pods": "1",
        "requests.cpu": resources["cpuRequest"],
        "limits.cpu": resources["cpu"],
        "requests.memory": resources["memoryRequest"],
        "limits.memory": resources["memory"],
        "requests.ephemeral-storage": resources["ephemeralStorage"],
        "limits.ephemeral-storage": resources["ephemeralStorage"],
    }
    amount: Callable[[str], Any] = parse_quantity  # which has no types
    lacking = [name for name, each in asked.items() if pods * amount(each) > amount(quota[name])]
    assert lacking == []


# Names that are not there, all given at once: the schema's answers do not depend on each other.
MISSPELT = {
    "gatewy.replicas=3": "at '': additional properties 'gatewy' not allowed",
    "gateway.replica=3": "at '/gateway': additional properties 'replica' not allowed",
    "gateway.resources.limit.memory=1Gi": "additional properties 'limit' not allowed",
    "gateway.config.limits.run_timout=5": "additional properties 'run_timout' not allowed",
    "gateway.strategy.rollingUpdate.maxSurg=1": "additional properties 'maxSurg' not allowed",
    "gateway.livenessProbe.httpGet.path=/x": "at '/gateway/livenessProbe': additional properties 'httpGet' not allowed",
    "operator.config.heartbeat=5": "additional properties 'heartbeat' not allowed",
    "sandboxes.templates.default.hostuser=false": "additional properties 'hostuser' not allowed",
    "sandboxes.templates.default.resources.mem=1Gi": "additional properties 'mem' not allowed",
    "sandboxes.pools.default.replica=3": "additional properties 'replica' not allowed",
    "ingress.tls[0].secret=x": "at '/ingress/tls/0': additional properties 'secret' not allowed",
    "httpRoute.hosts={x}": "at '/httpRoute': additional properties 'hosts' not allowed",
}
# Values that are wrong, by the place that the answer names.
WRONG = {
    "gateway.replicas=many": "at '/gateway/replicas': got string, want integer",
    # YAML takes these for numbers and would change them: 1.10 is 1.1, and 0123 is 83.
    "gateway.image.tag=20261127": "at '/gateway/image/tag': got number, want string",
    "operator.env.PORT=8000": "at '/operator/env/PORT': got number, want string",
    "operator.env.FLAG=true": "at '/operator/env/FLAG': got boolean, want string",
    "sandboxes.templates.default.resources.memory=2147483648": "at '/sandboxes/templates/default/resources/memory'",
    "gateway.image.pullPolicy=Sometimes": "at '/gateway/image/pullPolicy'",
    "gateway.image.digest=abc": "at '/gateway/image/digest'",
    "imagePullSecrets[0].name=x": "at '/imagePullSecrets/0': got object, want string",
    "sandboxes.namespace=Sandboxes": "at '/sandboxes/namespace'",
    "sandboxes.moreNamespaces={a,B}": "at '/sandboxes/moreNamespaces/1'",
    "sandboxes.pools.default.replicas=-1": "at '/sandboxes/pools/default/replicas'",
    "sandboxes.quota.enabled=no": "at '/sandboxes/quota/enabled': got string, want boolean",
    "gateway.config.limits.run_timeout=0": "at '/gateway/config/limits/run_timeout'",
    "auth.keys[0].hash=plain": "at '/auth/keys/0'",
    f"fullnameOverride={'a' * 70}": "at '/fullnameOverride': maxLength: got 70, want 45",
}


@pytest.mark.parametrize("value", MISSPELT)
def test_misspelt_value_is_refused_by_name(value: str) -> None:
    assert MISSPELT[value] in refusal(*MISSPELT)


@pytest.mark.parametrize("value", WRONG)
def test_wrong_value_is_refused_with_its_place(value: str) -> None:
    assert WRONG[value] in refusal(*WRONG)


def fixed(values: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value whose name is the chart's, in values.yaml: all but the entries of users' maps."""
    for name, value in values.items():
        yield (name,)
        part = schema["properties"][name]
        part = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if isinstance(value, dict) and "properties" in part:
            yield from ((name, *path) for path in fixed(value, part, definitions))


# Whose single fields may be absent, each with a default of Kubernetes or of the program.
FREE = {"resources", "startupProbe", "readinessProbe", "livenessProbe", "strategy", "config", "limitRange"}


def test_every_value_that_is_null_is_named_by_the_refusal() -> None:
    # An upgrade with --reuse-values gives the same to a chart that has new values. Without the refusal, a guard would
    # be left out without a word: `enabled` of null is false in a template.
    known = set(fixed(yaml.safe_load(VALUES.read_text(encoding="utf-8")), schema(), schema()["definitions"]))
    paths = {path for path in known if not FREE & set(path[:-1]) or path[-1] == "enabled"}
    assert {
        ("networkPolicy", "enabled"),
        ("sandboxes", "quota", "enabled"),
        ("sandboxes", "limitRange", "enabled"),
        ("sandboxes", "admissionPolicy", "enabled"),
        ("sandboxes", "createNamespace"),
    } <= paths
    named = set()
    for depth in {len(path) for path in paths}:
        said = refusal(*(f"{'.'.join(path)}=null" for path in paths if len(path) == depth))
        for place, missing in re.findall(r"at '(.*?)': missing propert(?:y|ies) (.*)", said):
            named |= {(*place.split("/")[1:], name) for name in re.findall(r"'(.*?)'", missing)}
    assert paths - named == set()


def test_entries_of_users_maps_can_be_removed_by_null() -> None:
    values = ["podSecurityContext.runAsUser=null", "gateway.resources.limits=null", "sandboxes.quota.hard.pods=null"]
    values += ["gateway.config.log_format=null", "sandboxes.pools.default.replicas=null", "operator.strategy.type=null"]
    manifests = render(*values)
    assert "pods" not in only(manifests, "ResourceQuota", "sandpod-namespace")["spec"]["hard"]
    assert (
        "limits"
        not in only(manifests, "Deployment", "sandpod-gateway")["spec"]["template"]["spec"]["containers"][0][
            "resources"
        ]
    )


@pytest.mark.parametrize("name", ["host", "port", "backend", "tls.cert", "auth.keys_file", "kubernetes.namespace"])
def test_settings_that_follow_from_other_values_can_not_be_set_beside_them(name: str) -> None:
    assert "not allowed" in refusal(f"gateway.config.{name}=1")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["ingress.enabled=true"], "ingress.hosts is needed when ingress.enabled is true: set it to the names"),
        (["httpRoute.enabled=true", "httpRoute.hostnames={a.example}"], "httpRoute.parentRefs and httpRoute.hostnames"),
        (["operator.serviceAccount.create=false"], "serviceAccount.name is needed when serviceAccount.create is false"),
        (["gateway.autoscaling.minReplicas=11"], "gateway.autoscaling has a minReplicas above its maxReplicas"),
        (["sandboxes.namespace=sandpod"], "sandboxes.namespace must not be the release namespace"),
        (["sandboxes.moreNamespaces={sandpod}"], "sandboxes.moreNamespaces must not hold the release namespace"),
        (["sandboxes.moreNamespaces={a,a}"], "name a namespace twice: name each once"),
        (
            [
                "auth.existingSecret=x",
                "auth.keys[0].name=a,auth.keys[0].user=a,auth.keys[0].created=2026-01-01T00:00:00Z",
                f"auth.keys[0].hash=sha256:{'0' * 64}",
            ],
            "auth.existingSecret and auth.keys exclude each other: add the keys to the existing Secret",
        ),
        (["sandboxes.pools.gpu.replicas=1"], "set its templateRef.name, or add sandboxes.templates.gpu"),
    ],
)
def test_wrong_combination_is_refused_with_the_next_step(values: list[str], sentence: str) -> None:
    assert sentence in refusal(*values)


def leaves(properties: dict[str, Any], place: str = "") -> set[str]:
    """Return the paths of all properties that are objects with fixed names, and of what is in them."""
    found: set[str] = set()
    for name, value in properties.items():
        found.add(f"{place}{name}")
        found |= leaves(value.get("properties", {}), f"{place}{name}.")
    return found


def keys(values: dict[str, Any], known: set[str], place: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in values.items():
        if f"{place}{name}" in known:
            found.add(f"{place}{name}")
            found |= keys(value, known, f"{place}{name}.") if isinstance(value, dict) else set()
    return found


def test_values_file_shows_every_value_that_the_schema_knows() -> None:
    known = leaves(schema()["properties"])
    assert keys(yaml.safe_load(VALUES.read_text(encoding="utf-8")), known) == known


def test_schema_is_closed_everywhere_but_where_kubernetes_knows_more() -> None:
    open_objects: list[str] = []

    def look(node: object, place: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and "additionalProperties" not in node:
                open_objects.append(place)
            for key, value in node.items():
                look(value, f"{place}/{key}")
        elif isinstance(node, list):
            for index, value in enumerate(node):
                look(value, f"{place}/{index}")

    look(schema(), "")
    assert {re.sub(r"^.*/properties/", "", place) for place in open_objects} == {
        "global",
        "podSelector",
        "namespaceSelector",
        "ipBlock",
        "/definitions/podObject",
        "/definitions/named",
        "extraObjects/items",
        "metrics/items",
        "parentRefs/items",
    }


def test_chart_is_of_the_same_version_as_the_wheel() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    wheel = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert wheel is not None
    assert chart["appVersion"] == chart["version"] == wheel[1]


def test_rendering_twice_gives_the_same() -> None:
    texts = {template("--description", name, *(f"--values={file}" for file in EXAMPLES)) for name in ("one", "two")}
    assert len(texts) == 1


def test_numbers_are_written_as_given_and_text_stays_text(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    hard = {"requests.memory": 2147483648, "limits.cpu": 2, "pods": "10"}
    odd = "a{{ .x }} 'q' \"d\" $HOME #c: - \n"
    given = {"sandboxes": {"quota": {"hard": hard}}, "gateway": {"podAnnotations": {"odd": odd, "version": "1.10"}}}
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    found = only(render(files=(file,)), "ResourceQuota", "sandpod-namespace")["spec"]["hard"]
    assert {name: found[name] for name in hard} == hard
    deployment = only(render(files=(file,)), "Deployment", "sandpod-gateway")
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert (annotations["odd"], annotations["version"]) == (odd, "1.10")


def test_longest_release_name_gives_names_and_labels_that_kubernetes_takes() -> None:
    release = f"{'a' * 51}-b"
    for made in filter(None, yaml.safe_load_all(template(release=release))):
        name = made["metadata"]["name"]
        # What has a DNS name, or gives its name to pods that have one.
        longest = 63 if made["kind"] in {"Service", "Deployment", "Namespace"} else 253
        assert len(name) <= longest, name
        assert all(len(value) <= 63 for value in made["metadata"].get("labels", {}).values())


def test_chart_says_where_it_is_from() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert {"icon", "maintainers"} <= set(chart)
    assert chart["icon"].startswith("data:image/svg+xml;base64,")


def test_what_helm_prints_names_nothing_that_only_a_checkout_has() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    assert "charts/" not in notes
    assert "manifests/" not in notes


def test_names_that_yaml_takes_for_numbers_or_truth_stay_text(tmp_path: Path) -> None:
    given = {
        "nameOverride": "1",
        "imagePullSecrets": ["12"],
        "tls": {"secretName": "13"},
        "tests": {"keySecret": "14"},
        "ingress": {"enabled": True, "hosts": ["15"], "className": "16", "tls": [{"secretName": "17"}]},
        "gateway": {"env": {"NO": "18"}, "priorityClassName": "19", "serviceAccount": {"name": "1e1"}},
        "operator": {"env": {"ON": "20"}, "serviceAccount": {"name": "21"}},
        "auth": {"existingSecret": "22"},
        "metrics": {"prometheusRule": {"enabled": True}, "serviceMonitor": {"enabled": True, "labels": {"a": "23"}}},
        "sandboxes": {
            "namespace": "24",
            "moreNamespaces": ["25"],
            "templates": {"26": {"runtimeClassName": "27"}},
            "pools": {"26": {"autoscaling": {"enabled": True, "maxReplicas": 3}}},
            "defaultTemplate": "26",
        },
        "tenants": {"30": {"namespace": "31"}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(given), encoding="utf-8")
    printed = template("--values", str(file), release="1e3", namespace="29")
    texts = {"name", "namespace", "secretName", "className", "value", "pool", "host", "runtimeClassName"}
    texts |= {"serviceAccountName", "ingressClassName", "priorityClassName", "policyName"}

    def look(node: object, place: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                within = place.endswith(("labels", "annotations", "matchLabels", "selector"))
                assert isinstance(key, str), place
                if key in texts or (within and not isinstance(value, dict | list)):
                    assert isinstance(value, str), f"{place}.{key}: {value!r}"
                look(value, f"{place}.{key}")
        elif isinstance(node, list):
            for value in node:
                look(value, place)

    for made in yaml.safe_load_all(printed):
        look(made, made["kind"] if made else "")
