"""The gateway's view of the Kubernetes API: the objects of one namespace, and the address of an exec."""

from collections.abc import Sequence
from typing import Any, Final, Self

from sandpod_api import names
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.streams.exec_protocol import ExecTarget
from sandpod_kube.client import KubeClient
from sandpod_kube.configuration import load
from sandpod_kube.resources import PODS, SANDBOXES, TEMPLATES

REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request. Claims take milliseconds; what takes longer than this is not going to answer."""
_RESOURCES: Final = {resource.plural: resource for resource in (SANDBOXES, TEMPLATES, PODS)}
_REVIEWS: Final = "authorization.k8s.io/v1"

Json = dict[str, Any]


class Cluster:
    """One namespace of one cluster. All methods raise `ClusterError`; they name resources by their plural."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.host = client.host

    @classmethod
    async def connect(cls, settings: KubernetesSettings) -> Self:
        """Read the configuration; no request is made. Raises ConfigError: there is no usable one."""
        configuration = await load(settings.kubeconfig, settings.context)
        client = KubeClient(configuration, manager="sandpod-gateway", timeout=REQUEST_TIMEOUT)
        return cls(client, settings.namespace or client.namespace or "default")

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()

    async def get(self, plural: str, name: str) -> Json:
        """Return one object."""
        return await self.client.get(_RESOURCES[plural], self.namespace, name)

    async def list_page(self, plural: str, query: dict[str, str]) -> Json:
        """Return one page of objects; the query says labelSelector, limit, continue."""
        return await self.client.list_page(_RESOURCES[plural], self.namespace, query)

    async def create(self, plural: str, body: Json) -> Json:
        """Create an object and return it."""
        return await self.client.create(_RESOURCES[plural], body, self.namespace)

    async def json_patch(self, plural: str, name: str, operations: list[Json]) -> Json:
        """Apply a JSON patch, all or nothing, and return the object."""
        return await self.client.json_patch(_RESOURCES[plural], self.namespace, name, operations)

    async def merge_patch(self, plural: str, name: str, body: Json) -> Json:
        """Merge into an object and return it."""
        return await self.client.patch(_RESOURCES[plural], self.namespace, name, body)

    async def delete(self, plural: str, name: str) -> None:
        """Delete an object; what it owns goes after it."""
        await self.client.delete(_RESOURCES[plural], self.namespace, name)

    async def allowed(self, verb: str, resource: str, *, group: str, subresource: str = "") -> bool:
        """Return whether the gateway's own account may do something in the namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "resource": resource, "group": group}
        if subresource:
            attributes["subresource"] = subresource
        review = {"apiVersion": _REVIEWS, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = await self.client.ask(f"/apis/{_REVIEWS}/selfsubjectaccessreviews", review)
        return answer.get("status", {}).get("allowed") is True

    async def exec_target(self, pod: str, command: Sequence[str]) -> ExecTarget:
        """Return where to open an exec of the command in a sandbox's container, with streams and no terminal."""
        access = await self.client.access()
        params = [("container", names.CONTAINER), *(("command", word) for word in command)]
        params += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
        return ExecTarget(
            url=f"{access.server}{PODS.path(self.namespace, pod)}/exec",
            params=params,
            headers={"authorization": f"Bearer {access.token}"} if access.token else {},
            ssl=access.ssl_context,
            server_hostname=access.server_hostname,
            proxy=access.proxy,
        )
