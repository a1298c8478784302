"""A small controller for the edge of a cluster: it does what Ingress, Gateway and HTTPRoute objects say, and no more.

It reads them from the API server, and makes of them the configuration of an nginx in a pod.

`gateway-api-v1.4.1.yaml.gz` has two files of the Go module sigs.k8s.io/gateway-api (Apache License 2.0) as they are:
the CRDs of Gateway and HTTPRoute, of the standard channel.
"""

import base64
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from support.cluster import writing
from support.cluster.reading import call, read
from support.servers import nginx

Json = dict[str, Any]

GATEWAY_API: Final = "gateway.networking.k8s.io/v1"
_CRDS: Final = Path(__file__).with_name("gateway-api-v1.4.1.yaml.gz")
_ANNOTATIONS: Final = {
    "nginx.org/proxy-read-timeout": "proxy_read_timeout",
    "nginx.org/proxy-send-timeout": "proxy_send_timeout",
    "nginx.org/client-max-body-size": "client_max_body_size",
}
_UPGRADES: Final = 'map $http_upgrade $upgraded { default upgrade; "" ""; }'


@dataclass
class Host:
    """What is served under one host name.

    Attributes:
        certificate: Namespace and name of the Secret.
        common: Lines of nginx for all paths.
        upgrades: The backends that take WebSockets, or None for all.
        places: What nginx has for each path.
    """

    name: str
    certificate: tuple[str, str]
    common: list[str]
    upgrades: set[str] | None
    places: list[str] = field(default_factory=list)

    def lead(self, path: str, kind: str, namespace: str, service: str, port: int) -> None:
        """Lead a path to a port of a Service: that path alone, or with all below it, by whole elements."""
        lines = [f"proxy_pass http://{service}.{namespace}.svc:{port};", "proxy_http_version 1.1;", *self.common]
        lines += ["proxy_set_header Host $http_host;", "proxy_set_header X-Forwarded-Proto $scheme;"]
        lines += ["proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"]
        if self.upgrades is None or service in self.upgrades:
            lines += ["proxy_set_header Upgrade $http_upgrade;", "proxy_set_header Connection $upgraded;"]
        matches = [f"= {path}"] if kind == "Exact" else [f"= {path}", f"{path}/"]
        self.places += [f"location {match} {{ {' '.join(lines)} }}" for match in matches]


def files(hosts: list[Host], port: int, folder: Path) -> dict[str, str]:
    """Return the files of an nginx that serves those hosts at a port, and nobody else; it has them in that folder."""
    made = {}
    servers = [_UPGRADES, f"server {{ listen {port} ssl default_server; ssl_reject_handshake on; }}"]
    for host in hosts:
        secret = read("secrets", *host.certificate)["data"]
        for part in ("tls.crt", "tls.key"):
            made[f"{host.name}.{part}"] = base64.b64decode(secret[part]).decode()
        pair = f"ssl_certificate {folder}/{host.name}.tls.crt; ssl_certificate_key {folder}/{host.name}.tls.key;"
        head = f"listen {port} ssl; server_name {host.name}; {pair}"
        servers.append(f"server {{ {head} {' '.join(host.places)} location / {{ return 404; }} }}")
    return {**made, "nginx.conf": nginx.MAIN.format(server="\n    ".join(servers))}


def of_ingress(namespace: str, name: str) -> list[Host]:
    """Return the hosts of an Ingress, as Kubernetes and the NGINX Ingress Controller have the words."""
    found = call("GET", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses/{name}")
    spec, given = found["spec"], found["metadata"].get("annotations", {})
    common = [f"{word} {given[key]};" for key, word in _ANNOTATIONS.items() if key in given]
    if given.get("nginx.org/proxy-buffering") == "False":
        common.append("proxy_buffering off;")
    upgrades = set(given.get("nginx.org/websocket-services", "").split(","))
    hosts = []
    for rule in spec["rules"]:
        [secret] = {each["secretName"] for each in spec["tls"] if rule["host"] in each["hosts"]}
        host = Host(rule["host"], (namespace, secret), common, upgrades)
        for path in rule["http"]["paths"]:
            service = path["backend"]["service"]
            port = _port(namespace, service["name"], **service["port"])
            host.lead(path["path"].rstrip("/") or "/", path["pathType"], namespace, service["name"], port)
        hosts.append(host)
    return hosts


def of_route(namespace: str, name: str) -> list[Host]:
    """Return the hosts of an HTTPRoute with one rule, with the certificate of the listener that it is attached to."""
    spec = call("GET", f"/apis/{GATEWAY_API}/namespaces/{namespace}/httproutes/{name}")["spec"]
    [parent], [rule] = spec["parentRefs"], spec["rules"]
    [backend] = rule["backendRefs"]
    place = f"/apis/{GATEWAY_API}/namespaces/{parent['namespace']}/gateways/{parent['name']}"
    [listener] = [each for each in call("GET", place)["spec"]["listeners"] if each["name"] == parent["sectionName"]]
    assert (listener["protocol"], listener["allowedRoutes"]["namespaces"]["from"]) == ("HTTPS", "All")
    secret = parent["namespace"], listener["tls"]["certificateRefs"][0]["name"]
    # Of the specification: no time is without a limit, and connections are upgraded for whoever asks.
    patience = {"0s": "24h"}.get(rule["timeouts"]["request"], rule["timeouts"]["request"])
    common = [f"proxy_read_timeout {patience};", f"proxy_send_timeout {patience};", "client_max_body_size 0;"]
    hosts = [Host(host, secret, [*common, "proxy_buffering off;"], None) for host in spec["hostnames"]]
    for host in hosts:
        for match in rule["matches"]:
            path, port = match["path"], _port(namespace, backend["name"], number=backend["port"])
            host.lead(path["value"].rstrip("/") or "/", path["type"], namespace, backend["name"], port)
    return hosts


def _port(namespace: str, service: str, *, name: str | None = None, number: int | None = None) -> int:
    """Return the number of a Service's port, which the Service must have."""
    ports = read("services", namespace, service)["spec"]["ports"]
    [found] = [each["port"] for each in ports if each["name"] == name or each["port"] == number]
    return int(found)


@contextmanager
def gateway_api() -> Iterator[None]:
    """Have the CRDs of Gateway and HTTPRoute; the API server takes such objects some time later."""
    definitions = [each for each in yaml.safe_load_all(gzip.decompress(_CRDS.read_bytes())) if each]
    for each in definitions:
        writing.apply(each)
    try:
        yield
    finally:
        for each in definitions:
            writing.remove(each)
