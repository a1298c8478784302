"""Usage documents in ConfigMaps of the gateways' own namespace, one for each document."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from sandpod_gateway.backends.kubernetes.cluster import Cluster, start_error, translated
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.usage.stores import Documents, Stored
from sandpod_kube.errors import ClusterError, ConflictError, NotFoundError
from sandpod_kube.follow import follow
from sandpod_kube.owner import owned_by
from sandpod_kube.resources import CONFIG_MAPS

LABEL: Final = "sandpod.dev/usage"
"""On each ConfigMap; its value is the beginning of their names."""
ENTRY: Final = "document.json"


class ConfigMaps:
    """Documents whose ConfigMaps have one beginning of their names; implements `usage.stores.DocumentStore`."""

    def __init__(
        self, cluster: Callable[[], Cluster], reference: str, silence: float, owner: str | None = None
    ) -> None:
        """Use namespace/name, the latter as the beginning; a watch without an event for so long counts as dead.

        A ConfigMap of that namespace is to own those that are made.
        """
        self._cluster = cluster
        self._silence = silence
        self._owner = owner
        self._namespace, _, self._prefix = reference.partition("/")
        self._query = {"labelSelector": f"{LABEL}={self._prefix}"}

    async def read(self) -> Documents:
        """Return all documents."""
        with translated("usage was read"):
            page = await self._cluster().client.list_page(CONFIG_MAPS, self._namespace, self._query)
            return dict(map(_stored, page.get("items") or []))

    async def write(self, name: str, content: bytes, version: str | None) -> str | None:
        """Write a document; see `DocumentStore.write`."""
        client, data = self._cluster().client, {"data": {ENTRY: content.decode()}}
        full = f"{self._prefix}-{name}"
        with translated("usage was written"):
            try:
                if version is None:
                    owned = await owned_by(client, self._namespace, self._owner)
                    metadata = {"name": full, "labels": {LABEL: self._prefix}, **owned}
                    body = {**CONFIG_MAPS.header, "metadata": metadata, **data}
                    written = await client.create(CONFIG_MAPS, body, self._namespace)
                else:
                    change = {"metadata": {"resourceVersion": version}, **data}
                    written = await client.patch(CONFIG_MAPS, self._namespace, full, change)
            except (ConflictError, NotFoundError):
                return None
        return str(written["metadata"]["resourceVersion"])

    async def delete(self, name: str, version: str) -> None:
        """Delete a document of that version."""
        with translated("usage was deleted"):
            try:
                preconditions = {"resourceVersion": version}
                name = f"{self._prefix}-{name}"
                await self._cluster().client.delete(CONFIG_MAPS, self._namespace, name, preconditions)
            except (ConflictError, NotFoundError):
                return

    async def follow(self, use: Callable[[Documents], None]) -> None:
        """Pass all documents on, now and at each change."""
        with translated("usage was watched"):
            client = self._cluster().client
            found = follow(client, CONFIG_MAPS, self._namespace, self._query, silence=self._silence)
            async with aclosing(found) as all_of_them:
                async for config_maps in all_of_them:
                    use(dict(map(_stored, config_maps)))


def _stored(config_map: dict[str, Any]) -> tuple[str, Stored]:
    metadata = config_map["metadata"]
    content = str((config_map.get("data") or {}).get(ENTRY, ""))
    name = str(metadata["name"]).removeprefix(f"{metadata['labels'][LABEL]}-")
    return name, Stored(content.encode(), str(metadata["resourceVersion"]))


async def read_all(reference: str) -> Documents:
    """Return the documents of an installation (namespace/name), with the rights of the caller's kubeconfig.

    With an empty name, all of the namespace. Raises StartError: the cluster can't be used.
    """
    namespace, _, prefix = reference.partition("/")
    cluster = None
    try:
        cluster = await Cluster.connect(KubernetesSettings(namespace=namespace))
        selector = f"{LABEL}={prefix}" if prefix else LABEL
        page = await cluster.client.list_page(CONFIG_MAPS, namespace, {"labelSelector": selector})
        return dict(map(_stored, page.get("items") or []))
    except ClusterError as error:
        raise start_error(error, cluster) from error
    finally:
        if cluster is not None:
            await cluster.close()
