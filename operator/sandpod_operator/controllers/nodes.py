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
    """The cluster's nodes. Every answer is the cautious one where the operator may not look."""

    def __init__(self, cluster: KubeClient) -> None:
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._read_at = -_REFRESH
        self._nodes: tuple[NodeRuntimes, ...] = ()
        self._classes: dict[str, RuntimeClass] = {}

    async def kernel(self, node: str) -> Kernel:
        """Return a node's kernel, an unknown one where the operator may not look.

        Raises:
            ClusterError: The API server did not answer.
        """
        try:
            return Kernel.of_node(await self._cluster.get(resources.NODES, "", node))
        except DeniedError:
            return Kernel()

    async def give_user_namespaces(self, spec: SandboxTemplateSpec) -> bool:
        """Return whether every node that may run the template's pods can give each a user namespace of its own.

        Raises:
            ClusterError: The API server did not answer.
        """
        async with self._lock:
            if time.monotonic() - self._read_at >= _REFRESH:
                self._nodes = await self._read()
                self._classes.clear()
                self._read_at = time.monotonic()
            try:
                runtime = await self._runtime_class(spec.runtime_class_name)
            except (DeniedError, NotFoundError):
                return False
        return possible(spec, runtime, self._nodes)

    async def _read(self) -> tuple[NodeRuntimes, ...]:
        try:
            return tuple([NodeRuntimes.of_node(each) async for each in self._cluster.pages(resources.NODES, "")])
        except DeniedError:
            return ()  # and not asked again for each pod

    async def _runtime_class(self, name: str | None) -> RuntimeClass:
        if name is None:
            return RuntimeClass()
        if name not in self._classes:
            self._classes[name] = RuntimeClass.of(await self._cluster.get(resources.RUNTIME_CLASSES, "", name))
        return self._classes[name]
