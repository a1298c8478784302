"""Finds an installed release in a cluster: its accounts, settings and namespaces of sandboxes. It reads alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from sandpod_api import names
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_kube.client import KubeClient
from sandpod_kube.resources import CONFIG_MAPS, Resource

Json = dict[str, Any]

PART_OF: Final = "app.kubernetes.io/part-of=sandpod"
COMPONENT: Final = "app.kubernetes.io/component"
COMPONENTS: Final = ("gateway", "operator")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", PART_OF)
_CONFIG_MAPS: Final = Resource("", "v1", CONFIG_MAPS.plural, CONFIG_MAPS.kind, PART_OF)
_NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", names.LABEL_TENANT, namespaced=False)
_SETTINGS: Final = "config.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What is installed."""

    namespace: str
    accounts: Mapping[str, str]  # by component
    sandboxes: tuple[str, ...]  # namespaces, the default tenant's first
    template: str  # of callers that name none
    options: Mapping[str, bool]  # what the gateway may be given more rights for


async def find(client: KubeClient, namespace: str) -> Release:
    """Return the release of a namespace. Raises SandpodError: there is none; and ClusterError."""
    deployments = [each async for each in client.pages(DEPLOYMENTS, namespace)]
    accounts = {
        each["metadata"]["labels"].get(COMPONENT, ""): each["spec"]["template"]["spec"].get(
            "serviceAccountName", "default"
        )
        for each in deployments
    }
    if not set(COMPONENTS) <= accounts.keys():
        raise SandpodError(
            ErrorCode.NOT_FOUND,
            f"There is no Sandpod in namespace {namespace}.",
            next_step="Name the namespace that the chart is installed in: --namespace NAME.",
        )
    settings = await _settings(client, namespace)
    found = settings.get("kubernetes") or {}
    spaces = [found.get("namespace") or namespace, *(found.get("tenants") or {}).values()]
    if found.get("first_use_namespace"):
        spaces += [
            each["metadata"]["name"]
            async for each in client.pages(_NAMESPACES, "")
            if each["metadata"]["labels"].get(names.LABEL_RELEASE) == namespace
        ]
    return Release(
        namespace=namespace,
        accounts={component: accounts[component] for component in COMPONENTS},
        sandboxes=tuple(dict.fromkeys(spaces)),
        template=found.get("default_template") or "default",
        options={
            "secrets": bool(found.get("secrets")),
            "scale_pools": bool(found.get("scale_pools")),
            "first_use": bool(found.get("first_use_namespace")),
        },
    )


async def _settings(client: KubeClient, namespace: str) -> Json:
    """Return the gateway's settings file, from its ConfigMap."""
    async for each in client.pages(_CONFIG_MAPS, namespace):
        text = (each.get("data") or {}).get(_SETTINGS)
        if each["metadata"].get("labels", {}).get(COMPONENT) == "gateway" and text:
            found = yaml.safe_load(text)
            return found if isinstance(found, dict) else {}
    return {}
