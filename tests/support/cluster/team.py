"""A team's endpoint: a release with two tenants, where users sign in through the gateways, behind nginx.

There is TLS all the way: nginx has a certificate, and so have the gateways.

Its OpenID Connect provider is one at which clients can't register, and each step of a sign-in reaches whichever gateway
comes next.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml
from cryptography import x509
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from support.cluster import proxy_pod
from support.cluster.callers import Session
from support.cluster.cluster import Cluster, node_address
from support.cluster.reading import read
from support.cluster.release import LITTLE, SMALL, helm, image, remove
from support.command_line import sandpod
from support.gateway.browser import ByBrowser, User, provider
from support.ports import free_port
from support.servers.certificates import make_chain
from support.servers.nginx import Proxy, nginx

CHART: Final = Path(__file__).resolve().parents[3] / "charts" / "sandpod"
NAMESPACE: Final = "sandpod-whole"
SANDBOXES: Final = "sandpod-whole-sandboxes"
TENANTS: Final = ("red", "blue")
SERVICE: Final = "sandpod-gateway"
AUDIT: Final = "/var/log/sandpod"
TRUST: Final = "/etc/provider"
LASTING: Final = "lasting"  # the template of sandboxes that can be suspended


def values(
    entry: dict[str, Any], public: str, issuer: Proxy, client: dict[str, str], pair: tuple[Path, Path]
) -> dict[str, Any]:
    """Return the chart's values, as docs/install.md and docs/operate.md have them for each part.

    `client` is the gateways' own one at the provider; `pair` their certificate chain and its key.
    """
    host, _, port = issuer.address.removeprefix("https://").rpartition(":")
    certificate = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "provider-ca"},
        "data": {"root.crt": issuer.root.read_text(encoding="utf-8")},
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "sso"},
        "stringData": {"client_secret": client["client_secret"]},
    }
    tls = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "own-tls"},
        "type": "kubernetes.io/tls",
        "stringData": {file.name: file.read_text(encoding="utf-8") for file in pair},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "audit"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }
    return {
        "auth": {"keys": [entry], "changeKeys": True, "oidcClientSecret": "sso"},
        "tls": {"secretName": "own-tls"},
        "gateway": {
            **image("gateway"),
            **LITTLE,
            "replicas": 2,
            "service": {"sessionAffinity": "None"},
            "config": {
                "trusted_proxies": ["10.0.0.0/8", "172.16.0.0/12"],
                "links": {"public_url": public},
                "auth": {
                    "oidc": {
                        "issuer": issuer.address,
                        "ca_file": f"{TRUST}/root.crt",
                        "client_id": client["client_id"],
                        "proxy": {},
                        "tenants": {name: name for name in TENANTS},
                    }
                },
                "audit": {"sink": "file", "path": f"{AUDIT}/audit-{{host}}.jsonl"},
            },
            "extraVolumes": [
                {"name": "audit", "persistentVolumeClaim": {"claimName": "audit"}},
                {"name": "provider", "configMap": {"name": "provider-ca"}},
            ],
            "extraVolumeMounts": [
                {"name": "audit", "mountPath": AUDIT},
                {"name": "provider", "mountPath": TRUST, "readOnly": True},
            ],
        },
        "operator": {**image("operator"), **LITTLE, "replicas": 2},
        "sandboxes": {
            "namespace": SANDBOXES,
            **image("sandbox"),
            "templates": {
                "default": {"resources": SMALL, "preimport": []},
                LASTING: {"resources": SMALL, "preimport": [], "workspace": {"size": "16Mi", "persistent": True}},
            },
            "pools": {"default": {"replicas": 0}},
        },
        "tenants": {name: {"pools": {"default": {"replicas": 1}}} for name in TENANTS},
        "networkPolicy": {"oidcPorts": [int(port)], "oidcCidrs": [f"{host}/32"]},
        "extraObjects": [certificate, secret, tls, volume],
    }


@contextmanager
def installed(file: Path, wanted: dict[str, Any]) -> Iterator[Cluster]:
    """Give the release, and remove it with its namespaces."""
    file.write_text(yaml.safe_dump(wanted), encoding="utf-8")
    try:
        helm("install", NAMESPACE, str(CHART), "--create-namespace", "--skip-crds", "--values", str(file))
        yield Cluster(namespace=NAMESPACE, sandboxes=SANDBOXES)
    finally:
        remove(NAMESPACE, SANDBOXES, *(f"{SANDBOXES}-{tenant}" for tenant in TENANTS))


def own_address() -> str:
    """Return the address by which pods reach this machine: the one that leads to their node."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node_address(read("nodes", "")["items"][0]), 9))
        return str(probe.getsockname()[0])


@dataclass
class Endpoint:
    """The team's endpoint.

    Attributes:
        url: Its address.
        key: The key of an agent, of the first tenant.
        trust: Trusts the certificates of nginx and of the provider.
        root: The root of nginx's certificate.
    """

    cluster: Cluster
    url: str
    key: str
    trust: ssl.SSLContext
    root: Path


@asynccontextmanager
async def endpoint(folder: Path) -> AsyncIterator[Endpoint]:
    made = json.loads(await sandpod("keys", "create", "--user", "kit", "--tenant", TENANTS[0], "--output", "json"))
    at_provider, public = free_port(), await asyncio.to_thread(proxy_pod.reserved, NAMESPACE)
    async with AsyncExitStack() as stack:
        sync = stack.enter_context(ExitStack())
        issuer = sync.enter_context(nginx(folder / "issuer", f"127.0.0.1:{at_provider}", address=own_address()))
        await stack.enter_async_context(provider(f"{public}/mcp", at_provider, issuer.address))
        client = {"redirect_uris": [f"{public}/auth/callback"], "token_endpoint_auth_method": "client_secret_basic"}
        async with httpx2.AsyncClient(verify=issuer.trust) as http:
            own = (await http.post(f"{issuer.address}/reg", json=client)).json()
        root, *pair = make_chain(folder / "gateway", x509.DNSName(SERVICE))
        wanted = values(made["entry"], public, issuer, own, (pair[0], pair[1]))
        release = installed(folder / "values.yaml", wanted)
        cluster = await asyncio.to_thread(sync.enter_context, release)
        place = NAMESPACE, folder / "front", public, f"{SERVICE}:8000"
        front = await asyncio.to_thread(proxy_pod.started, *place, (SERVICE, root))
        front.trust.load_verify_locations(issuer.root)
        yield Endpoint(cluster, f"{front.address}/mcp", made["key"], front.trust, front.root)


@asynccontextmanager
async def signed_in(endpoint: Endpoint, user: User) -> AsyncIterator[tuple[Session, str]]:
    """Sign in as FastMCP's client does; gives the connection and the token that it got."""
    auth = ByBrowser(user)
    transport = StreamableHttpTransport(endpoint.url, auth=auth, verify=endpoint.trust)
    async with Client(transport, timeout=120) as client:
        await asyncio.gather(*auth.pages)
        tokens = auth.context.current_tokens
        assert tokens is not None
        yield Session(client), tokens.access_token
