"""One Kubernetes Secret as the store of what gateways sign links with; see `link_keys.SecretStore`.

The Secret is made by whoever installs the gateway, without content: the gateway may read and patch this one, by name,
and can't create any.
"""

import base64
from collections.abc import Callable
from typing import Final

from sandpod_gateway.backends.cluster import Cluster
from sandpod_gateway.backends.cluster_errors import ClusterError, RefusedError, translate
from sandpod_gateway.link_keys import Stored

KEY: Final = "keys.json"
"""What the content is called in the Secret."""


class KubernetesSecret:
    """A Secret.

    Args:
        cluster: Returns the cluster; raises `SandpodError` while there is none.
        reference: Its namespace and name, with a slash between.
    """

    def __init__(self, cluster: Callable[[], Cluster], reference: str) -> None:
        self._cluster = cluster
        self._namespace, _, self._name = reference.partition("/")

    async def read(self) -> Stored | None:
        """Return what is there; None when there is no such Secret."""
        try:
            secret = await self._cluster().get_secret(self._namespace, self._name)
        except RefusedError as error:
            if error.not_found:
                return None
            raise translate(error, "the keys of links were read") from error
        except ClusterError as error:
            raise translate(error, "the keys of links were read") from error
        encoded = (secret.get("data") or {}).get(KEY, "")
        return Stored(base64.b64decode(encoded), str(secret["metadata"]["resourceVersion"]))

    async def replace(self, content: bytes, version: str) -> bool:
        """Write, unless it is not that version any more."""
        body = {"metadata": {"resourceVersion": version}, "data": {KEY: base64.b64encode(content).decode()}}
        try:
            await self._cluster().patch_secret(self._namespace, self._name, body)
        except RefusedError as error:
            if error.conflict:
                return False
            raise translate(error, "the keys of links were written") from error
        except ClusterError as error:
            raise translate(error, "the keys of links were written") from error
        return True
