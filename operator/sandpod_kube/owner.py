"""Who owns what Sandpod makes beside its sandboxes: Kubernetes deletes it with its owner."""

from typing import Any

from sandpod_kube.client import KubeClient
from sandpod_kube.errors import NotFoundError
from sandpod_kube.resources import CONFIG_MAPS


async def owned_by(client: KubeClient, namespace: str, config_map: str | None) -> dict[str, Any]:
    """Return the metadata of an object of a namespace that a ConfigMap there is to own; empty without that ConfigMap.

    Raises ClusterError: the ConfigMap can't be read.
    """
    if not config_map:
        return {}
    try:
        owner = (await client.get(CONFIG_MAPS, namespace, config_map))["metadata"]
    except NotFoundError:
        return {}
    return {"ownerReferences": [{**CONFIG_MAPS.header, "name": owner["name"], "uid": owner["uid"]}]}
