"""The ways to the gateway from outside of the cluster: Ingress and HTTPRoute."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sandpod_gateway.console.session import PREFIX as CONSOLE_PREFIX
from sandpod_gateway.e2b.hosts import PREFIX as E2B_PREFIX
from sandpod_gateway.http.mcp.transports import MCP_PATH, MESSAGES_PATH, SSE_PATH
from sandpod_gateway.rest.operations import PREFIX as REST_PREFIX
from support.chart.render import ROOT, Manifest, only, render

EXAMPLES: Final = ROOT / "manifests" / "examples" / "values"
INGRESS: Final = ("ingress.enabled=true", "ingress.hosts={run.example.com,b.example}")
ROUTE: Final = ("httpRoute.enabled=true", "httpRoute.parentRefs[0].name=public", "httpRoute.hostnames={a.example}")
SECRET: Final = "ingress.tls[0].secretName=cert"


def ingress(*values: str, files: tuple[Path, ...] = ()) -> Manifest:
    return only(render(*values, files=files), "Ingress", "sandpod-gateway")


def public_url(*values: str) -> str | None:
    text = only(render(*values), "ConfigMap", "sandpod-gateway-config")["data"]["config.yaml"]
    found: str | None = yaml.safe_load(text).get("links", {}).get("public_url")
    return found


def test_there_is_no_way_from_outside_unless_it_is_asked_for() -> None:
    assert not {"Ingress", "HTTPRoute"} & {m["kind"] for m in render()}
    assert public_url() is None


@pytest.mark.parametrize(
    ("values", "url"),
    [
        (INGRESS, "http://run.example.com"),
        ((*INGRESS, SECRET), "https://run.example.com"),
        (ROUTE, "https://a.example"),
        ((*ROUTE, "gateway.config.links.public_url=https://other.example"), "https://other.example"),
    ],
)
def test_links_lead_to_the_first_host(values: tuple[str, ...], url: str) -> None:
    assert public_url(*values) == url


def test_every_route_for_callers_is_reached_by_each_host_and_none_for_the_cluster() -> None:
    [first, second] = ingress(*INGRESS)["spec"]["rules"]
    assert (first.pop("host"), second.pop("host")) == ("run.example.com", "b.example")
    assert first == second
    paths = first["http"]["paths"]
    backend = {"service": {"name": "sandpod-gateway", "port": {"name": "http"}}}
    assert all(path["backend"] == backend for path in paths)
    assert {path["path"] for path in paths if path["pathType"] == "Exact"} == {"/"}
    assert {path["pathType"] for path in paths} == {"Prefix", "Exact"}
    rest = REST_PREFIX.removesuffix("/v1")
    mcp = {MCP_PATH, SSE_PATH, MESSAGES_PATH.rstrip("/")}
    wanted = mcp | {rest, E2B_PREFIX, CONSOLE_PREFIX, "/", "/files", "/archives", "/healthz"}
    assert {path["path"] for path in paths} == wanted


def test_tls_of_an_ingress_is_for_all_hosts_unless_it_names_some() -> None:
    other = ("ingress.tls[1].secretName=b", "ingress.tls[1].hosts={b.example}")
    assert ingress(*INGRESS, SECRET, *other)["spec"]["tls"] == [
        {"hosts": ["run.example.com", "b.example"], "secretName": "cert"},
        {"hosts": ["b.example"], "secretName": "b"},
    ]


def test_ingress_has_no_annotations_but_those_of_the_values() -> None:
    assert "annotations" not in ingress(*INGRESS, "tls.secretName=t")["metadata"]
    made = ingress(
        *INGRESS, "ingress.annotations.a=b", "ingress.pathType=ImplementationSpecific", "ingress.className=x"
    )
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["ingressClassName"] == "x"
    assert {path["pathType"] for rule in made["spec"]["rules"] for path in rule["http"]["paths"]} == {
        "ImplementationSpecific",
        "Exact",
    }
    without = ingress(*INGRESS, "gateway.paths={/mcp}")["spec"]["rules"][0]["http"]["paths"]
    assert [path["path"] for path in without] == ["/mcp"]


@pytest.mark.promise("heartbeat")
def test_ingress_of_the_example_lets_long_silent_streams_through() -> None:
    made = ingress(files=(EXAMPLES / "ingress.yaml",))
    annotations = made["metadata"]["annotations"]
    assert annotations["nginx.org/proxy-read-timeout"] == annotations["nginx.org/proxy-send-timeout"] == "1h"
    assert annotations["nginx.org/proxy-buffering"] == "False"
    assert annotations["cert-manager.io/cluster-issuer"] == "letsencrypt"  # which fills the Secret of its TLS
    assert made["spec"]["tls"] == [{"hosts": ["sandpod.example.com"], "secretName": "sandpod-example-com-tls"}]


def test_route_of_the_example_goes_to_the_service_by_the_same_paths_without_a_limit_of_time() -> None:
    manifests = render(files=(EXAMPLES / "gateway-api.yaml",))
    spec: dict[str, Any] = only(manifests, "HTTPRoute", "sandpod-gateway")["spec"]
    assert spec["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    assert spec["hostnames"] == ["sandpod.example.com"]
    [rule] = spec["rules"]
    port = only(manifests, "Service", "sandpod-gateway")["spec"]["ports"][0]["port"]
    assert rule["backendRefs"] == [{"name": "sandpod-gateway", "port": port}]
    assert rule["timeouts"] == {"request": "0s"}
    paths = [match["path"]["value"] for match in rule["matches"]]
    assert paths == [path["path"] for path in ingress(*INGRESS)["spec"]["rules"][0]["http"]["paths"]]
