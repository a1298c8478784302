"""The Kubernetes backend: sandboxes are Sandbox resources, their runners are reached by one exec stream each.

It wires the parts together and translates their errors. It makes no pods: that is the operator's work, asked for by
resources alone.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from cachetools import LRUCache

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.types import exec_command
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import (
    ByteStream,
    ClaimRequest,
    SandboxEvent,
    SandboxRecord,
)
from sandpod_gateway.backends.kubernetes.cache.records import (
    Records,
    event_records,
    events_selector,
    to_record,
)
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore, SandboxWatch
from sandpod_gateway.backends.kubernetes.catalog import Catalog
from sandpod_gateway.backends.kubernetes.claims.claimer import Claimer
from sandpod_gateway.backends.kubernetes.claims.readiness import Background
from sandpod_gateway.backends.kubernetes.cluster import Cluster, start_error, translated
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.streams.exec_stream import ExecStream, open_exec
from sandpod_gateway.backends.kubernetes.streams.warm_streams import WarmStreams
from sandpod_gateway.backends.refusals import no_such_sandbox, sandbox_lost
from sandpod_gateway.errors import SandpodError
from sandpod_kube.configuration import has_proxy
from sandpod_kube.errors import ClusterError, ConflictError, NotFoundError, RefusedError
from sandpod_kube.resources import EVENTS
from sandpod_telemetry import attributes, tracing

logger = logging.getLogger(__name__)

START_TIMEOUT: Final = 10.0
"""Seconds to reach the cluster at start, check the rights and read the Sandboxes."""
CHECK_TIMEOUT: Final = 2.0
"""Seconds that the API server gets to answer a readiness check: less than what a probe waits for."""
MAX_EVENTS: Final = 100
"""Of a sandbox, that are read: the operator writes a few, and forgets none."""
_TRIES: Final = 10  # to note a background run while the resource changes
_AHEAD: Final = 0.1  # of a background run's seconds: its note serves those that begin so much later, too


class KubernetesBackend(Catalog):
    """Sandboxes in one namespace of a cluster; implements `base.Backend`."""

    kind = "kubernetes"

    def __init__(self, settings: KubernetesSettings) -> None:
        self._store = SandboxStore()
        super().__init__(settings, lambda: self._open.cluster, self._store.get)
        self._background = Background()
        self._touched: LRUCache[str, float] = LRUCache(2 * settings.max_sandboxes)
        self._records = Records(2 * settings.max_sandboxes)
        self._claimer: Claimer | None = None
        self._at_end = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Connect, check the rights, read the Sandboxes; see `base.Backend.start`."""
        cluster = None
        try:
            async with asyncio.timeout(START_TIMEOUT):
                cluster = await Cluster.connect(self._settings)
                self._at_end.push_async_callback(cluster.close)
                await cluster.check_usable()
                await self._assemble(cluster)
        except BaseException as error:
            await self.close()
            if isinstance(error, ClusterError | TimeoutError):
                raise start_error(error, cluster) from error
            raise
        logger.info("using namespace %s of the cluster at %s", cluster.namespace, cluster.host)

    async def close(self) -> None:
        """Close streams, watch and connections. The sandboxes stay: they live in the cluster."""
        await self._background.close()
        await self._at_end.aclose()

    async def check(self) -> None:
        """Ask the API server for next to nothing; see `base.Backend.check`."""
        with translated("it was asked whether it works"):
            async with asyncio.timeout(CHECK_TIMEOUT):
                await self._open.cluster.list_page(names.TEMPLATES, {"limit": "1"})

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        """Give the caller a sandbox that is Ready; see `base.Backend.claim`."""
        await self.secret_source().check(request)
        sandbox, fresh = await self._open.claim(request)
        if fresh:
            # A claim counts as use and writes so: the first run right after it need not write again.
            self._touched[sandbox.metadata.name] = time.monotonic()
        tracing.note(self._place(sandbox.metadata.name))
        record = to_record(sandbox)
        if record is None:
            raise RuntimeError("a claimed sandbox lost its claim, which the API server does not allow")
        return replace(record, fresh=fresh, warm=fresh and names.LABEL_POOL in sandbox.metadata.labels)

    async def get(self, name: str) -> SandboxRecord | None:
        """Return the claimed sandbox of that name, whosever it is."""
        sandbox = self._store.get(name)
        return None if sandbox is None else to_record(sandbox)

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's sandboxes, oldest first."""
        return self._records.of(self._store.owned(owner))

    async def every(self) -> tuple[SandboxRecord, ...]:
        """Return the sandboxes of all owners, oldest first."""
        return tuple(self._records.of(self._store.claimed()))

    async def events(self, name: str) -> tuple[SandboxEvent, ...]:
        """Return the Events of a Sandbox, where the gateway may read them; see `base.Backend.events`."""
        if (sandbox := self._store.get(name)) is None:
            return ()
        with translated("a sandbox's events were listed"):
            try:
                query = {"fieldSelector": events_selector(sandbox), "limit": str(MAX_EVENTS)}
                page = await self._open.cluster.list_page(EVENTS.plural, query)
            except RefusedError as error:
                if error.status == HTTPStatus.FORBIDDEN:
                    return ()
                raise
        return event_records(page.get("items", []))

    def warm(self) -> dict[tuple[str, str], int]:
        """Return how many Ready sandboxes wait for a claim, by tenant (here the default one) and template."""
        return {("", template): count for template, count in self._store.warm_counts().items()}

    async def wake(self, name: str) -> SandboxRecord | None:
        """Return the sandbox once it is Ready; see `base.Backend.wake`."""
        record = await self.get(name)
        if record is None or record.status not in {"Suspended", "Pending"}:
            return record
        await self._open.wake(name)
        return await self.get(name)

    async def suspend(self, name: str) -> None:
        """Take the sandbox's pod away; see `base.Backend.suspend`."""
        with translated("a sandbox was suspended"), contextlib.suppress(NotFoundError):
            await self._change(name, {"operatingMode": "Suspended"})

    async def set_lifetime(self, name: str, *, ttl: int, idle_timeout: int) -> SandboxRecord:
        """Change how long the sandbox lives; see `base.Backend.set_lifetime`."""
        with translated("a sandbox's lifetime was changed"):
            try:
                record = await self._change(name, {"lifetime": {"ttl": ttl, "idleTimeout": idle_timeout}})
            except NotFoundError:
                record = None
        if record is None:
            raise no_such_sandbox()
        return record

    async def _change(self, name: str, spec: dict[str, Any]) -> SandboxRecord | None:
        if self._store.get(name) is None:
            return None
        used = {names.ANNOTATION_LAST_ACTIVITY: rfc3339(datetime.now(UTC))}
        patch = {"metadata": {"annotations": used}, "spec": spec}
        body = await self._open.cluster.merge_patch(names.SANDBOXES, name, patch)
        return to_record(self._store.take_answer(body))

    async def delete(self, name: str) -> None:
        """Delete a claimed sandbox; its pod goes after it."""
        if await self.get(name) is None:
            return
        with translated("a sandbox was deleted"), contextlib.suppress(NotFoundError):
            await self._open.cluster.delete(names.SANDBOXES, name)
        self._store.remove(name)
        self._touched.pop(name, None)

    async def touch(self, name: str) -> None:
        """Note the sandbox's use, in the background and not more often than the settings say."""
        record = await self.get(name)
        if record is None:
            return
        now = time.monotonic()
        # At least three writes fit into an idle timeout: a sandbox in use must not seem idle.
        interval = min(self._settings.touch_interval, record.idle_timeout / 3)
        if now - self._touched.get(name, float("-inf")) < interval:
            return
        self._touched[name] = now
        self._background.start(self._write_activity(name))

    async def keep_busy(self, name: str, seconds: float) -> None:
        """Note in the resource that a background run may go on for so many seconds.

        Another run may be noted at the same time, here or by another gateway: the later end stays.
        """
        sandbox = self._store.get(name)
        now = datetime.now(UTC)
        needed, until = [rfc3339(now + timedelta(seconds=each)) for each in (seconds, seconds * (1 + _AHEAD))]
        # Both are UTC in one form, so that their order as texts is their order in time.
        for _ in range(_TRIES):
            if sandbox is None or sandbox.metadata.annotations.get(names.ANNOTATION_BUSY_UNTIL, "") >= needed:
                return
            with translated("a background run was noted"):
                known = sandbox.metadata.resource_version
                try:
                    body = await self._annotate(name, names.ANNOTATION_BUSY_UNTIL, until, known)
                except ConflictError:
                    body = await self._open.cluster.get(names.SANDBOXES, name)
                sandbox = self._store.take_answer(body)

    async def open_stream(self, name: str) -> ByteStream:
        """Open a stream to the sandbox's runner, or hand over the one that is open already."""
        record = await self.get(name)
        if record is None:
            raise no_such_sandbox()
        cause = record.message or record.reason
        if record.status in {"Pending", "Suspended"}:
            what = "is still starting" if record.status == "Pending" else "was just suspended"
            message, step = f"The sandbox {what}.", "Try again in a moment."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=step)
        if record.status != "Ready":
            raise sandbox_lost(cause or f"It is {record.status.lower()}.")
        stream = self._open.streams.take(name)
        tracing.note({**self._place(name), attributes.STREAM_WARM: stream is not None})
        if stream is not None:
            return stream
        with translated("a stream to the sandbox was opened"):
            try:
                return await self._open.streams.connect(name)
            except NotFoundError as error:
                raise sandbox_lost("Its pod is gone.", kept=record.persistent) from error

    async def _assemble(self, cluster: Cluster) -> None:
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=has_proxy(cluster.host))

        async def connect(name: str) -> ExecStream:
            """Open a stream to the runner in the pod of that name: a Sandbox's pod bears its name."""
            command = (*exec_command(self._store.get(name)), "attach")
            return await open_exec(http, await cluster.exec_target(name, command))

        streams = WarmStreams(self._store, connect, self._settings.warm_streams)
        watch = SandboxWatch(cluster.client, cluster.namespace, self._store, self._settings.watch_silence)
        for part in (http, watch, streams):
            self._at_end.push_async_callback(part.close)
        self._claimer = Claimer(cluster, self._store, self._settings, self._background, self.touch, streams)
        await watch.start()
        streams.start()

    def _place(self, name: str) -> dict[str, str]:
        """Return what a span says of a sandbox's place: its pod bears its name."""
        return {attributes.NAMESPACE: self._open.cluster.namespace, attributes.POD: name}

    @property
    def _open(self) -> Claimer:
        """What is there while the backend is started."""
        if self._claimer is None:
            step = "Try again in a moment."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "The backend is not started.", next_step=step)
        return self._claimer

    async def _write_activity(self, name: str) -> None:
        try:
            await self._annotate(name, names.ANNOTATION_LAST_ACTIVITY, rfc3339(datetime.now(UTC)))
        except ClusterError as error:
            logger.warning("the use of sandbox %s can't be noted: %s", name, error)

    async def _annotate(self, name: str, key: str, value: str, known: str | None = None) -> dict[str, Any]:
        """Set an annotation and return the resource. Raises ConflictError: it is not the `known` version any more."""
        metadata = {"annotations": {key: value}, **({"resourceVersion": known} if known else {})}
        return await self._open.cluster.merge_patch(names.SANDBOXES, name, {"metadata": metadata})
