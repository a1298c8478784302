"""nginx in a pod in front of the gateways of a release, with the settings of examples/proxies/nginx.conf or others."""

import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from support.cluster import writing
from support.cluster.cluster import node_address
from support.cluster.reading import read
from support.cluster.release import image
from support.ports import await_open
from support.servers.certificates import make_chain
from support.servers.nginx import Proxy, configuration

NAME: Final = "test-front"
PORT: Final = 8443
FILES: Final = Path("/etc/front")


def reserved(namespace: str) -> str:
    """Make the namespace and the Service of the pod to come, and return its address, https://node:port."""
    writing.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    spec = {"type": "NodePort", "selector": {"app": NAME}, "ports": [{"port": PORT}]}
    writing.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec}, namespace)
    port = read("services", namespace, NAME)["spec"]["ports"][0]["nodePort"]
    return f"https://{node_address(read('nodes', '')['items'][0])}:{port}"


def started(namespace: str, folder: Path, address: str, upstream: str, trusted: tuple[str, Path]) -> Proxy:
    """Return nginx at a reserved address once it serves; `trusted` as of `nginx`. It goes with its namespace."""
    folder.mkdir()
    host = address.removeprefix("https://").rpartition(":")[0]
    root, chain, key = make_chain(folder, x509.IPAddress(ip_address(host)))
    name, authority = trusted
    inside = FILES / chain.name, FILES / key.name
    text = configuration(str(PORT), host, (upstream,), inside, trusted=(name, FILES / "upstream.crt"))
    files = {file.name: file.read_text(encoding="utf-8") for file in (chain, key)}
    files |= {"nginx.conf": text, "upstream.crt": authority.read_text(encoding="utf-8")}
    run(namespace, address, files)
    return Proxy(address, root, ssl.create_default_context(cafile=str(root)), folder)


def run(namespace: str, address: str, files: dict[str, str]) -> None:
    """Return once an nginx serves at a reserved address by its files, which are in the folder FILES."""
    writing.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": files}, namespace)
    writing.apply(_pod(), namespace)
    host, _, port = address.removeprefix("https://").rpartition(":")
    await_open(host, int(port), within=60)


def _pod() -> dict[str, Any]:
    volumes = [{"name": "files", "secret": {"secretName": NAME}}, {"name": "work", "emptyDir": {}}]
    container = {
        "name": "nginx",
        "image": "{repository}:{tag}".format_map(image("test-nginx")["image"]),
        "imagePullPolicy": "Never",
        "command": ["nginx", "-p", "/work", "-c", str(FILES / "nginx.conf")],
        "volumeMounts": [
            {"name": "files", "mountPath": str(FILES), "readOnly": True},
            {"name": "work", "mountPath": "/work"},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "volumes": volumes, "securityContext": security}
    spec |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "labels": {"app": NAME}}, "spec": spec}
