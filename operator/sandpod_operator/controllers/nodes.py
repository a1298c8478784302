"""What nodes say of themselves, where the operator may look at them."""

import asyncio
import time
from typing import Final

from sandpod_api.templates import SandboxTemplateSpec
from sandpod_kube import resources
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import DeniedError, NotFoundError
from sandpod_operator.manifests.user_namespaces import NodeRuntimes, RuntimeClass, possible
from sandpod_operator.model.observed import Kernel

_REFRESH: Final = 300.0  # seconds; nodes come and change rarely, and a list of thousands is not small


class Nodes:
    """The cluster's nodes. Every answer is the cautious one where the operator may not look.

    Each call raises ClusterError where the API server does not answer.
    """

    def __init__(self, cluster: KubeClient) -> None:
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._read_at = -_REFRESH
        self._nodes: list[NodeRuntimes] = []
        self._classes: dict[str, RuntimeClass] = {}

    async def kernel(self, node: str) -> Kernel:
        """Return a node's kernel, an unknown one where the operator may not look."""
        try:
            return Kernel.of_node(await self._cluster.get(resources.NODES, "", node))
        except DeniedError:
            return Kernel()

    async def give_user_namespaces(self, spec: SandboxTemplateSpec) -> bool:
        """Return whether every node that may run the template's pods can give each a user namespace of its own."""
        async with self._lock:
            if time.monotonic() - self._read_at >= _REFRESH:
                await self._refresh()
            name = spec.runtime_class_name
            if name is not None and name not in self._classes:
                try:
                    found = await self._cluster.get(resources.RUNTIME_CLASSES, "", name)
                except (DeniedError, NotFoundError):
                    return False
                self._classes[name] = RuntimeClass.of(found)
        return possible(spec, self._classes[name] if name is not None else RuntimeClass(), self._nodes)

    async def _refresh(self) -> None:
        try:
            self._nodes = [NodeRuntimes.of_node(each) async for each in self._cluster.pages(resources.NODES, "")]
        except DeniedError:
            self._nodes = []  # and not asked again for each pod
        self._classes.clear()
        self._read_at = time.monotonic()
