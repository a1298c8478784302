"""Tries the sandboxes of a cluster, through the API server and with the rights of who asks."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp

from sandpod_api import names
from sandpod_api.fields import parse_quantity
from sandpod_api.templates import SandboxTemplate
from sandpod_gateway.backends.base import Backend, SandboxRecord
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.cluster import Cluster, start_error
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.streams.exec_stream import open_exec
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.verify import objects, probing
from sandpod_gateway.verify.model import Evidence, Facts, Untried
from sandpod_gateway.verify.places import ELSEWHERE, by_group, wanted
from sandpod_gateway.verify.programs import Programs, facts_of, source
from sandpod_gateway.verify.release import Release, find
from sandpod_kube.configuration import has_proxy
from sandpod_kube.errors import ClusterError
from sandpod_kube.resources import SANDBOXES

logger = logging.getLogger(__name__)

_OUTPUT: Final = 2**20  # bytes
_INSIDE: Final = (
    "identity",
    "files",
    "syscalls",
    "escapes",
    "capabilities",
    "links",
    "bounds",
    "memory",
    "attacks",
    "apart",
    "network",
    "admission",
)

Found = dict[str, Facts | Untried]


async def collect(settings: KubernetesSettings, namespace: str, template: str | None) -> Evidence:
    """Return what is seen of a release and of sandboxes that are made in it.

    Raises SandpodError: there is no cluster or no release.
    """
    cluster = None
    try:
        cluster = await Cluster.connect(settings)
        release = await find(cluster.client, namespace)
    except ClusterError as error:
        raise start_error(error, cluster) from error
    finally:
        if cluster is not None:
            await cluster.close()
    return await _Collector(settings, release, template or release.template).collect()


class _Collector:
    def __init__(self, settings: KubernetesSettings, release: Release, template: str) -> None:
        self._settings = settings
        self._release = release
        self._template = template

    async def collect(self) -> Evidence:
        own = self._release.sandboxes[0]
        cluster = await Cluster.connect(self._of(own))
        try:
            client = cluster.client
            found: Found = {
                "namespaces": await _read(objects.namespaces(client, self._release)),
                "rights": await _read(objects.rights(client, self._release)),
            }
            try:
                found |= await self._tried(cluster)
            except (SandpodError, ConnectionLostError, ClusterError, TimeoutError) as error:
                found |= _not_had(error)
            found["pods"] = found.get("pods") or await _read(objects.pods(client, self._release))
            return found
        finally:
            await cluster.close()

    def _of(self, namespace: str) -> KubernetesSettings:
        changed = {"namespace": namespace, "warm_streams": 0, "tenants": {}}
        return self._settings.model_copy(update=changed)

    @asynccontextmanager
    async def _sandbox(self, namespace: str) -> AsyncIterator[tuple[Backend, SandboxRecord, Programs]]:
        backend = KubernetesBackend(self._of(namespace))
        await backend.start()
        try:
            async with probing.opened(backend, template=self._template) as (record, inside):
                yield backend, record, inside
        finally:
            await backend.close()

    async def _tried(self, cluster: Cluster) -> Found:
        own = self._release.sandboxes[0]
        async with AsyncExitStack() as stack:
            _, record, inside = await stack.enter_async_context(self._sandbox(own))
            beside, other, neighbour = await stack.enter_async_context(self._sandbox(own))
            tenant = await self._of_tenant(stack)
            client, made = (
                cluster.client,
                SandboxTemplate.model_validate(await cluster.get(names.TEMPLATES, self._template)),
            )
            found: Found = {
                "pods": await _read(objects.pods(client, self._release)),
                "closed": await _read(_conditions(cluster, record.name, made)),
                "admission": await _read(objects.admission(client, own, record.name)),
            }
            found |= await probing.look(inside)
            marks = await neighbour.facts("marks", {"make": True})
            found["apart"] = marks if isinstance(marks, Untried) else await inside.facts("marks", {"make": False})
            found["network"] = await _read(self._network(cluster, record.name, inside, neighbour, tenant))
            found |= await probing.strain(beside, inside, other.name, _bounds(made), found["identity"])
            return found

    async def _of_tenant(self, stack: AsyncExitStack) -> Programs | None:
        """Return a sandbox of another tenant, if there is one that can have it."""
        for namespace in self._release.sandboxes[1:]:
            try:
                return (await stack.enter_async_context(self._sandbox(namespace)))[2]
            except (SandpodError, ConnectionLostError) as error:
                logger.warning("there is no sandbox in %s: %s", namespace, error)
        return None

    async def _network(
        self, cluster: Cluster, name: str, inside: Programs, neighbour: Programs, tenant: Programs | None
    ) -> Facts | Untried:
        """Return how each try ended, by group and by who tried: the caller's code, and what is beside the runner."""
        groups = {**ELSEWHERE, **await objects.places(cluster.client, self._release)}
        async with AsyncExitStack() as stack:
            listeners = zip(("pods", "tenants"), (neighbour, tenant), probing.LISTEN_PORTS, strict=True)
            for group, listener, port in listeners:
                if listener is not None:
                    address = await stack.enter_async_context(listener.running("listen", str(port)))
                    groups[group] = {"tcp": [f"{address}:{port}"], "udp": [f"{address}:{port}"]}
            code = await inside.facts("network", wanted(groups))
            beside = await _beside(cluster, name, "network", wanted(groups))
        seen = {"from code": code, "from beside the runner": beside}
        for who, facts in seen.items():
            if isinstance(facts, Untried):
                return Untried(f"{who}: {facts.reason}")
        return by_group(groups, {who: facts for who, facts in seen.items() if not isinstance(facts, Untried)})


async def _beside(cluster: Cluster, sandbox: str, program: str, argument: Any) -> Facts | Untried:
    """Return what a program tells that runs in the sandbox's pod beside the runner, on the runner's own Python."""
    command = [names.RUNNER_COMMAND[0], "-I", "-c", source(program), json.dumps(argument)]
    async with aiohttp.ClientSession(trust_env=has_proxy(cluster.host)) as http:
        stream = await open_exec(http, await cluster.exec_target(sandbox, command))
        output = bytearray()
        try:
            while (data := await stream.read()) and len(output) < _OUTPUT:
                output += data
        finally:
            await stream.close()
    return facts_of(output.decode("utf-8", "replace"))


async def _conditions(cluster: Cluster, name: str, template: SandboxTemplate) -> Facts:
    sandbox = await cluster.client.get(SANDBOXES, cluster.namespace, name)
    listed = {each["type"]: each for each in sandbox.get("status", {}).get("conditions", [])}
    return {
        "condition": listed.get("NetworkIsolated", {}),
        "kernel": listed.get("KernelIsolated", {}),
        "runtime_class": template.spec.runtime_class_name or "",
    }


def _bounds(template: SandboxTemplate) -> probing.Bounds:
    spec = template.spec
    folders = {"/tmp": spec.tmp_size}  # noqa: S108 - a path inside
    if spec.workspace.medium == "Memory" and not spec.workspace.persistent:
        folders[names.WORKSPACE] = spec.workspace.size
    return probing.Bounds(
        memory=int(parse_quantity(spec.resources.memory)),
        processes=spec.limits.processes,
        open_files=spec.limits.open_files,
        folders={place: int(parse_quantity(size)) for place, size in folders.items()},
    )


async def _read(reading: Awaitable[Facts | Untried]) -> Facts | Untried:
    """Return facts, or why they can't be had."""
    try:
        return await reading
    except (ClusterError, SandpodError, ConnectionLostError, TimeoutError) as error:
        return Untried(f"It could not be tried: {str(error) or 'it took too long'}")


def _not_had(error: Exception) -> Found:
    """Return what is known where no sandbox could be had: one that found its network open says so."""
    text = ". ".join(filter(None, (str(error), getattr(error, "cause", None)))) or "it took too long"
    found: Found = {name: Untried(f"No sandbox could be had: {text}") for name in _INSIDE}
    opened = "reached" in text or "NetworkOpen" in text
    condition = {"status": "False", "message": text}
    found["closed"] = {"condition": condition, "kernel": {}, "runtime_class": ""} if opened else Untried(text)
    return found
