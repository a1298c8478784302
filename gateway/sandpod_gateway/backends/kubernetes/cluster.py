"""The gateway's view of the Kubernetes API: one namespace's objects, and the address of an exec.

What a caller learns of a failed call is a coded error, and nothing of the cluster's inside; the administrator who
starts the gateway learns what is missing.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, Self

from sandpod_api import names
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_kube.client import KubeClient
from sandpod_kube.configuration import load
from sandpod_kube.errors import ClusterError, ConfigError, NotFoundError, RefusedError
from sandpod_kube.resources import EVENTS, PODS, POOLS, SANDBOXES, SECRETS, TEMPLATES

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request. Claims take milliseconds; what takes longer than this is not going to answer."""
_RESOURCES: Final = {resource.plural: resource for resource in (SANDBOXES, TEMPLATES, POOLS, PODS, SECRETS, EVENTS)}
RIGHTS: Final = (
    *((verb, names.SANDBOXES, "") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *((verb, names.TEMPLATES, "") for verb in ("get", "list")),
    # A WebSocket exec is a GET; API servers from 1.35 on ask for `create` too, as for any other exec.
    *((verb, PODS.plural, "exec") for verb in ("get", "create")),
)
"""What the gateway must be allowed in the namespace: verb, resource, part. Its Role has this and `VIEW_RIGHTS`."""
VIEW_RIGHTS: Final = (("list", names.POOLS, ""), ("list", EVENTS.plural, ""))
"""What is shown to people alone: a gateway works without it."""
SECRET_RIGHTS: Final = tuple((verb, SECRETS.plural, "") for verb in ("get", "create"))
"""As above, where sandboxes may have secrets."""
SCALE_RIGHTS: Final = (("patch", names.POOLS, "scale"),)
"""As above, where administrators may scale pools."""
_REVIEWS: Final = "authorization.k8s.io/v1"

Json = dict[str, Any]
Right = tuple[str, str, str]


class Cluster:
    """One namespace of one cluster. All methods raise `ClusterError`; they name resources by their plural."""

    def __init__(self, client: KubeClient, namespace: str, rights: tuple[Right, ...] = RIGHTS) -> None:
        self.client = client
        self.namespace = namespace
        self._rights = rights
        self.host = client.host

    @classmethod
    async def connect(cls, settings: KubernetesSettings) -> Self:
        """Read the configuration; no request is made. Raises ConfigError: there is no usable one."""
        configuration = await load(settings.kubeconfig, settings.context)
        client = KubeClient(configuration, manager="sandpod-gateway", timeout=REQUEST_TIMEOUT)
        rights = (
            *RIGHTS,
            *(SECRET_RIGHTS if settings.secrets else ()),
            *(SCALE_RIGHTS if settings.scale_pools else ()),
        )
        return cls(client, settings.namespace or client.namespace or "default", rights)

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

    async def check_usable(self) -> None:
        """Return when the cluster knows Sandpod's resources and the gateway has all its rights. It changes nothing.

        Raises:
            StartError: It does not know them, or rights are missing, which are named.
        """
        try:
            await self.list_page(names.TEMPLATES, {"limit": "1"})
        except NotFoundError as error:
            raise StartError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"The cluster at {self.host} does not have Sandpod's resources.",
                next_step="Install them: `helm install` of charts/sandpod, or `kubectl apply -f manifests/crds.yaml`.",
            ) from error
        missing = filter(None, await asyncio.gather(*(self._missing(*right) for right in self._rights)))
        if lacking := ", ".join(missing):
            raise StartError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"The gateway's account may not {lacking} in namespace {self.namespace}.",
                next_step="Give it the Role that the chart makes for the gateway.",
            )

    async def _missing(self, verb: str, resource: str, subresource: str) -> str:
        """Return a right in words if the gateway's own account lacks it."""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": _RESOURCES[resource].group,
            "resource": resource,
            "subresource": subresource,
        }
        review = {"apiVersion": _REVIEWS, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = await self.client.ask(f"/apis/{_REVIEWS}/selfsubjectaccessreviews", review)
        if answer.get("status", {}).get("allowed") is True:
            return ""
        return f"{verb} {resource}/{subresource}".removesuffix("/")

    async def exec_target(self, pod: str, command: Sequence[str]) -> Json:
        """Return where to open an exec of the command in a sandbox's container, with streams and no terminal.

        It is what `open_exec` takes.
        """
        access = await self.client.access()
        params = [("container", names.CONTAINER), *(("command", word) for word in command)]
        params += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
        return {
            "url": f"{access.server}{PODS.path(self.namespace, pod)}/exec",
            "params": params,
            "headers": {"authorization": f"Bearer {access.token}"} if access.token else {},
            "ssl": access.ssl_context,
            "server_hostname": access.server_hostname,
            "proxy": access.proxy,
        }


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise the caller's error for a request that fails. The API server's words are only logged."""
    try:
        yield
    except (ClusterError, TimeoutError) as error:
        logger.warning("the cluster failed while %s: %s", doing, str(error) or "it took too long")
        code, message, next_step = _meaning(error, doing)
        raise SandpodError(code, message, next_step=next_step) from error


def _meaning(error: Exception, doing: str) -> tuple[ErrorCode, str, str]:
    unavailable = ErrorCode.BACKEND_UNAVAILABLE
    if not isinstance(error, RefusedError):
        step = "Try again in a moment; if it stays so, tell the administrator."
        return unavailable, f"The cluster did not answer while {doing}.", step
    if error.status == HTTPStatus.FORBIDDEN and "exceeded quota" in str(error):
        step = "Close a sandbox that is not needed, or ask the administrator for more quota."
        return ErrorCode.QUOTA_EXCEEDED, "The namespace's quota leaves no room for another sandbox.", step
    if error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        step = "Tell the administrator: the gateway's Role lacks a right, or its credentials have ended."
        return unavailable, f"The cluster did not allow the gateway what it needs while {doing}.", step
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return unavailable, f"The cluster was overloaded or failing while {doing}.", "Try again in a moment."
    step = "Tell the administrator; the gateway's log has the details."
    return ErrorCode.BACKEND_ERROR, f"The cluster refused while {doing}.", step


def start_error(error: Exception, cluster: Cluster | None) -> StartError:
    """Return what the administrator, who starts the gateway, learns when the cluster fails or does not answer."""
    host = cluster.host if cluster else "?"
    if isinstance(error, ConfigError):
        message, next_step = "There is no cluster to use.", "Set a kubeconfig, or use the local backend."
    elif isinstance(error, RefusedError):
        message = f"The cluster at {host} refuses the gateway."
        next_step = "Check the kubeconfig's or the service account's credentials and the gateway's Role."
    else:
        message = f"The cluster at {host} can't be reached."
        next_step = "Check that it runs and that the kubeconfig's address is right, or use the local backend."
    cause = str(error) or "it gave no answer in time"
    return StartError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=next_step)
