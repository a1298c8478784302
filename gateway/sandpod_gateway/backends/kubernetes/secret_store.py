"""One Kubernetes Secret as the store of what gateways sign links with.

The Secret is made by whoever installs the gateway, without content: the gateway may read and patch this one, by name,
and can't create any.
"""

import base64
from collections.abc import Callable
from typing import Final

from sandpod_gateway.auth.links import Stored
from sandpod_gateway.backends.kubernetes.cluster import Cluster
from sandpod_gateway.backends.kubernetes.errors import translated
from sandpod_kube.errors import ConflictError, NotFoundError
from sandpod_kube.resources import SECRETS

KEY: Final = "keys.json"
"""What the content is called in the Secret."""


class KubernetesSecret:
    """A Secret (namespace/name) of a cluster, once there is one; implements `links.SecretStore`."""

    def __init__(self, cluster: Callable[[], Cluster], reference: str) -> None:
        self._cluster = cluster
        self._namespace, _, self._name = reference.partition("/")

    async def read(self) -> Stored | None:
        """Return what is there; None when there is no such Secret."""
        with translated("the keys of links were read"):
            try:
                secret = await self._cluster().client.get(SECRETS, self._namespace, self._name)
            except NotFoundError:
                return None
        encoded = (secret.get("data") or {}).get(KEY, "")
        return Stored(base64.b64decode(encoded), str(secret["metadata"]["resourceVersion"]))

    async def replace(self, content: bytes, version: str) -> bool:
        """Write, unless it is not that version any more."""
        body = {"metadata": {"resourceVersion": version}, "data": {KEY: base64.b64encode(content).decode()}}
        with translated("the keys of links were written"):
            try:
                await self._cluster().client.patch(SECRETS, self._namespace, self._name, body)
            except ConflictError:
                return False
        return True
