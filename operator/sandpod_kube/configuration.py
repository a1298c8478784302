"""Where the API server is and how to authenticate: from the pod's service account or a kubeconfig."""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import client, config
from yaml import YAMLError

from sandpod_kube.errors import ConfigError

_log = logging.getLogger(__name__)
# The client's asyncio half carries no types of its own.
_config: Any = config

TOKEN_INTERVAL: Final = 60.0
"""Seconds between two renewals of credentials that a kubeconfig's plugin makes."""
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Configuration:
    """How to connect."""

    settings: client.Configuration  # of the official client, which renews tokens of a service account by itself
    namespace: str | None = None  # of the service account or of the kubeconfig's context, if it names one
    renewal: asyncio.Task[None] | None = None  # renews the credentials of a kubeconfig's plugin, until cancelled


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What is needed to connect to the API server without this client. Paths are files of the official client."""

    server: str
    ca_path: str | None
    insecure: bool
    token: str | None
    certificate_path: str | None
    private_key_path: str | None
    ssl_context: ssl.SSLContext
    server_hostname: str | None
    proxy: str | None


async def load(kubeconfig: Path | None = None, context: str | None = None) -> Configuration:
    """Return the configuration: of the given kubeconfig, else of the pod's service account, else of kubectl.

    `context` is one of the kubeconfig; without, it is the current one. Raises ConfigError: none can be used.
    """
    settings = client.Configuration()
    try:
        if kubeconfig is None and (_SERVICE_ACCOUNT / "token").exists():
            _config.load_incluster_config(client_configuration=settings)
            return Configuration(settings, (_SERVICE_ACCOUNT / "namespace").read_text().strip())
        file = str(kubeconfig) if kubeconfig else None
        loader = await _config.load_kube_config(
            config_file=file, context=context, client_configuration=settings, persist_config=False
        )
        contexts, current = _config.list_kube_config_contexts(file)
        chosen = next((c for c in contexts if c["name"] == context), current)
        namespace = chosen["context"].get("namespace")
        renewal = asyncio.create_task(_renew_token(loader, settings))
        return Configuration(settings, namespace if isinstance(namespace, str) else None, renewal)
    except (_config.ConfigException, OSError, ValueError, YAMLError) as error:
        text = f"no usable Kubernetes configuration ({error}); set KUBECONFIG or run in a pod"
        raise ConfigError(text) from error


def has_proxy(url: str) -> bool:
    """Return whether the environment's variables send requests for an address through a proxy.

    Asked once for each client: aiohttp with `trust_env` asks for each request, in a thread.
    """
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


async def _renew_token(loader: Any, configuration: client.Configuration) -> None:
    """Renew what a kubeconfig's plugin gave, until cancelled; returns at once where there is no plugin."""
    while True:
        try:
            await _config.refresh_token(loader, configuration, interval=TOKEN_INTERVAL)
        except (_config.ConfigException, OSError, ValueError) as error:
            _log.warning("the kubeconfig's credentials can't be renewed: %s", error)
            await asyncio.sleep(TOKEN_INTERVAL)
        else:
            return
