"""Whether a cluster is one that the gateway can use, and a sentence about it where it is not. It changes nothing."""

import asyncio
from typing import Final

from sandpod_api import names
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.cluster import Cluster
from sandpod_gateway.errors import StartError
from sandpod_kube.errors import ConfigError, NotFoundError, RefusedError

RIGHTS: Final = (
    *((verb, names.SANDBOXES, "") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *((verb, names.TEMPLATES, "") for verb in ("get", "list")),
    # A WebSocket exec is a GET; API servers from 1.35 on ask for `create` too, as for any other exec.
    *((verb, "pods", "exec") for verb in ("get", "create")),
)
"""All that the gateway may do in the namespace: verb, resource, subresource. Its Role holds this and no more."""


async def check_usable(cluster: Cluster) -> None:
    """Return when the cluster knows Sandpod's resources and the gateway has all its rights.

    Raises:
        StartError: It does not know them, or rights are missing, which are named.
        ClusterError: It does not answer, or refuses.
    """
    try:
        await cluster.list_page(names.TEMPLATES, {"limit": "1"})
    except NotFoundError as error:
        raise StartError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"The cluster at {cluster.host} does not have Sandpod's resources.",
            next_step="Install them: `helm install` of charts/sandpod, or `kubectl apply -f manifests/crds.yaml`.",
        ) from error
    allowed = await asyncio.gather(*(cluster.allowed(*right) for right in RIGHTS))
    rights = zip(RIGHTS, allowed, strict=True)
    missing = [f"{verb} {'/'.join(filter(None, of))}" for (verb, *of), is_allowed in rights if not is_allowed]
    if missing:
        raise StartError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"The gateway's account may not {', '.join(missing)} in namespace {cluster.namespace}.",
            next_step="Give it the Role that the chart makes for the gateway.",
        )


def start_error(error: Exception, cluster: Cluster | None) -> StartError:
    """Return what the administrator, who starts the gateway, learns of any failure to start."""
    if isinstance(error, StartError):
        return error
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
