"""The gateways of a release behind what the chart makes for the edge of a cluster: an Ingress and an HTTPRoute.

Both are the examples' own, and one nginx in a pod does what they say.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509

from support.chart.render import ROOT, only, render
from support.cluster import proxy_pod, writing
from support.cluster.callers import Caller
from support.cluster.cluster import until
from support.cluster.reading import RefusedError
from support.edge import controller
from support.servers.certificates import make_chain

Json = dict[str, Any]

EXAMPLES: Final = ROOT / "manifests" / "examples" / "values"
NAMESPACE: Final = "sandpod-edge"  # of nginx, and of the Gateway
INGRESS: Final = "sandpod.example.com"
ROUTE: Final = "route.example.com"
SECRET: Final = "sandpod-example-com-tls"
NAME: Final = "sandpod-gateway"


@contextmanager
def exposed(release: str, folder: Path, key: str) -> Iterator[dict[str, Caller]]:
    """Give callers through the Ingress and the route by these words, in front of a release in that namespace."""
    ingress = only(render(files=(EXAMPLES / "ingress.yaml",)), "Ingress", NAME)
    changes = f"httpRoute.hostnames={{{ROUTE}}}", f"httpRoute.parentRefs[0].namespace={NAMESPACE}"
    route = only(render(*changes, files=(EXAMPLES / "gateway-api.yaml",)), "HTTPRoute", NAME)
    with ExitStack() as stack:
        stack.enter_context(controller.gateway_api())
        address = proxy_pod.reserved(NAMESPACE)
        stack.callback(writing.remove, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        trust = ssl.create_default_context()
        for manifest in (
            _secret(folder / "ingress", INGRESS, release, trust),
            _secret(folder / "route", ROUTE, NAMESPACE, trust),
            ingress,
        ):
            stack.enter_context(_made(manifest))
        for manifest in (_gateway(), route):
            asyncio.run(until("the API server knows the kind", partial(_takes, manifest), within=60))
        hosts = [*controller.of_ingress(release, NAME), *controller.of_route(release, NAME)]
        proxy_pod.run(NAMESPACE, address, controller.files(hosts, proxy_pod.PORT, proxy_pod.FILES))
        place, _, port = address.removeprefix("https://").rpartition(":")
        stack.enter_context(_names(place, INGRESS, ROUTE))
        ways = {"ingress": INGRESS, "route": ROUTE}
        yield {way: Caller(f"https://{host}:{port}/mcp", key, trust) for way, host in ways.items()}


@contextmanager
def _made(manifest: Json) -> Iterator[None]:
    writing.apply(manifest)
    try:
        yield
    finally:
        writing.remove(manifest)


async def _takes(manifest: Json) -> bool:
    """Make an object whose CRD is new; it goes with the CRD."""
    try:
        await asyncio.to_thread(writing.apply, manifest)
    except RefusedError as error:
        if error.status != 404:
            raise
        return False
    return True


def _secret(folder: Path, host: str, namespace: str, trust: ssl.SSLContext) -> Json:
    """Return a Secret with a chain for a host, as cert-manager makes it, whose root is trusted from now on."""
    folder.mkdir()
    root, chain, key = make_chain(folder, x509.DNSName(host))
    trust.load_verify_locations(root)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": chain.read_text(encoding="utf-8"), "tls.key": key.read_text(encoding="utf-8")},
    }


def _gateway() -> Json:
    """Return the Gateway that the example's route names, as who runs the cluster makes it."""
    listener = {
        "name": "https",
        "protocol": "HTTPS",
        "port": 443,
        "tls": {"certificateRefs": [{"name": SECRET}]},
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }
    return {
        "apiVersion": controller.GATEWAY_API,
        "kind": "Gateway",
        "metadata": {"name": "public", "namespace": NAMESPACE},
        "spec": {"gatewayClassName": "tests", "listeners": [listener]},
    }


@contextmanager
def _names(place: str, *names: str) -> Iterator[None]:
    """Have host names lead to an address, in this process."""
    look_up = socket.getaddrinfo

    def found(host: Any, *rest: Any, **more: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        return look_up(place if name in names else host, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", found)
        yield
