"""The Kubernetes backend: sandboxes are Sandbox resources, their runners are reached by one exec stream each.

Made by `factory.py`, used through `base.Backend`. It wires the parts together and translates their errors: claims are
in `claimer.py`, the copy of the cluster in `store.py` and `watch.py`, streams in `exec_stream.py` and
`warm_streams.py`. It makes no pods: that is the operator's work, asked for by resources alone.
"""

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Final

import aiohttp

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.results import ErrorCode
from sandpod_gateway.backends.background import Background
from sandpod_gateway.backends.base import ByteStream, ClaimRequest, SandboxRecord
from sandpod_gateway.backends.claimer import Claimer
from sandpod_gateway.backends.cluster import Cluster
from sandpod_gateway.backends.cluster_errors import ClusterError, ConfigError, RefusedError, UnreachableError, translate
from sandpod_gateway.backends.exec_stream import ExecStream, open_exec
from sandpod_gateway.backends.kubernetes_settings import KubernetesSettings
from sandpod_gateway.backends.records import to_record
from sandpod_gateway.backends.store import SandboxStore
from sandpod_gateway.backends.warm_streams import WarmStreams
from sandpod_gateway.backends.watch import SandboxWatch
from sandpod_gateway.errors import SandpodError, StartError

logger = logging.getLogger(__name__)

START_TIMEOUT: Final = 10.0
"""Seconds to reach the cluster at start, check the rights and read the Sandboxes."""
CHECK_TIMEOUT: Final = 2.0
"""Seconds that the API server gets to answer a readiness check: less than what a probe waits for."""

RIGHTS: Final = (
    *((verb, names.SANDBOXES, "") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *((verb, names.TEMPLATES, "") for verb in ("get", "list")),
    # A WebSocket exec is a GET; API servers from 1.35 on ask for `create` too, as for any other exec.
    *((verb, "pods", "exec") for verb in ("get", "create")),
)
"""All that the gateway may do in the namespace: verb, resource, subresource. Its Role holds this and no more."""

_ATTACH: Final = (*names.RUNNER_COMMAND, "attach")


class KubernetesBackend:
    """Sandboxes in one namespace of a cluster; implements `base.Backend`."""

    kind = "kubernetes"

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._store = SandboxStore()
        self._background = Background()
        self._touched: dict[str, float] = {}
        self._parts: _Parts | None = None

    async def start(self) -> None:
        """Connect, check the rights, read the Sandboxes.

        Raises:
            StartError: backend_unavailable; says in one sentence what to do.
        """
        cluster = None
        try:
            async with asyncio.timeout(START_TIMEOUT):
                cluster = await Cluster.connect(self._settings)
                await _check_installed(cluster)
                await _check_rights(cluster)
                self._parts = _Parts(cluster, self._store, self._settings, self._background)
                await self._parts.start()
        except BaseException as error:
            if self._parts is not None:
                await self.close()
            elif cluster is not None:
                await cluster.close()
            if isinstance(error, ClusterError | TimeoutError | StartError):
                raise _start_error(error, cluster) from error
            raise
        logger.info("using namespace %s of the cluster at %s", cluster.namespace, cluster.host)

    async def close(self) -> None:
        """Close streams, watch and connections. The sandboxes stay: they live in the cluster."""
        await self._background.close()
        if self._parts is not None:
            await self._parts.close()

    async def check(self) -> None:
        """Ask the API server for next to nothing.

        Raises:
            SandpodError: backend_unavailable.
        """
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                await self._open.cluster.list_page(names.TEMPLATES, {"limit": "1"})
        except TimeoutError as error:
            raise translate(UnreachableError("it took too long"), "it was asked whether it works") from error
        except ClusterError as error:
            raise translate(error, "it was asked whether it works") from error

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        """Give the caller a sandbox that is Ready; see `base.Backend.claim`."""
        sandbox, fresh = await self._open.claimer.claim(request)
        if fresh:
            # A claim counts as use and writes so: the first run right after it need not write again.
            self._touched[sandbox.metadata.name] = time.monotonic()
        if sandbox.spec.claim is None:
            raise RuntimeError("a claimed sandbox lost its claim, which the API server does not allow")
        return to_record(sandbox, sandbox.spec.claim)

    async def get(self, name: str) -> SandboxRecord | None:
        """Return the claimed sandbox of that name, whosever it is."""
        sandbox = self._store.get(name)
        if sandbox is None or sandbox.spec.claim is None:
            return None
        return to_record(sandbox, sandbox.spec.claim)

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's sandboxes, oldest first."""
        owned = self._store.owned(owner)
        records = [to_record(sandbox, sandbox.spec.claim) for sandbox in owned if sandbox.spec.claim is not None]
        return sorted(records, key=lambda record: (record.created, record.name))

    def warm(self) -> dict[str, int]:
        """Return how many Ready sandboxes wait for a claim, by template."""
        return self._store.warm_counts()

    async def delete(self, name: str) -> None:
        """Delete a claimed sandbox; its pod goes after it."""
        if await self.get(name) is None:
            return
        try:
            await self._open.cluster.delete(names.SANDBOXES, name)
        except RefusedError as error:
            if not error.not_found:
                raise translate(error, "a sandbox was deleted") from error
        except ClusterError as error:
            raise translate(error, "a sandbox was deleted") from error
        self._store.note_deleted(name, time.monotonic())
        self._touched.pop(name, None)

    async def touch(self, name: str) -> None:
        """Note the sandbox's use, in the background and not more often than the settings say."""
        record = await self.get(name)
        if record is None:
            return
        now = time.monotonic()
        # Three notes at least fit into an idle timeout: a sandbox in use must not seem idle.
        interval = min(self._settings.touch_interval, record.idle_timeout / 3)
        if now - self._touched.get(name, float("-inf")) < interval:
            return
        self._touched[name] = now
        if len(self._touched) > 2 * self._settings.max_sandboxes:
            self._touched = {n: t for n, t in self._touched.items() if self._store.get(n) is not None}
        self._background.start(self._write_activity(name))

    async def open_stream(self, name: str) -> ByteStream:
        """Open a stream to the sandbox's runner, or hand over the one that is open already."""
        self._require_ready(await self.get(name))
        stream = self._open.streams.take(name)
        if stream is not None:
            return stream
        try:
            return await self._open.connect(name)
        except RefusedError as error:
            if error.not_found:
                raise _lost("Its pod is gone.") from error
            raise translate(error, "a stream to the sandbox was opened") from error
        except ClusterError as error:
            raise translate(error, "a stream to the sandbox was opened") from error

    @property
    def _open(self) -> "_Parts":
        if self._parts is None:
            raise SandpodError(
                ErrorCode.BACKEND_UNAVAILABLE,
                "The backend is not started.",
                next_step="Try again in a moment.",
            )
        return self._parts

    def _require_ready(self, record: SandboxRecord | None) -> None:
        if record is None:
            raise SandpodError(
                ErrorCode.SESSION_NOT_FOUND,
                "There is no such sandbox.",
                next_step="Call list_sandboxes, or create_sandbox for a new one.",
            )
        if record.status == "Pending":
            raise SandpodError(
                ErrorCode.BACKEND_UNAVAILABLE,
                "The sandbox is still starting.",
                cause=record.message or record.reason,
                next_step="Try again in a moment.",
            )
        if record.status != "Ready":
            raise _lost(record.message or record.reason or f"It is {record.status.lower()}.")

    async def _write_activity(self, name: str) -> None:
        body = {"metadata": {"annotations": {names.ANNOTATION_LAST_ACTIVITY: rfc3339(datetime.now(UTC))}}}
        try:
            await self._open.cluster.merge_patch(names.SANDBOXES, name, body)
        except ClusterError as error:
            logger.warning("the use of sandbox %s can't be noted: %s", name, error)


class _Parts:
    """What exists while the backend is started."""

    def __init__(
        self, cluster: Cluster, store: SandboxStore, settings: KubernetesSettings, background: Background
    ) -> None:
        self.cluster = cluster
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=True)
        self._watch = SandboxWatch(cluster, store)
        self.streams = WarmStreams(store, self.connect, settings.warm_streams)
        self.claimer = Claimer(cluster, store, settings, streams=self.streams, background=background)

    async def start(self) -> None:
        await self._watch.start()
        self.streams.start()

    async def connect(self, name: str) -> ExecStream:
        """Open a stream to the runner in the pod of that name: a Sandbox's pod bears its name."""
        return await open_exec(self._http, await self.cluster.exec_target(name, _ATTACH))

    async def close(self) -> None:
        await self.streams.close()
        await self._watch.close()
        await self._http.close()
        await self.cluster.close()


async def _check_installed(cluster: Cluster) -> None:
    try:
        await cluster.list_page(names.TEMPLATES, {"limit": "1"})
    except RefusedError as error:
        if error.not_found:
            raise StartError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"The cluster at {cluster.host} does not have Sandpod's resources.",
                next_step="Install them: `helm install` of charts/sandpod, or `kubectl apply -f manifests/crds.yaml`.",
            ) from error
        raise


async def _check_rights(cluster: Cluster) -> None:
    groups = {"pods": ""}
    allowed = await asyncio.gather(
        *(
            cluster.allowed(verb, resource, group=groups.get(resource, names.GROUP), subresource=subresource)
            for verb, resource, subresource in RIGHTS
        )
    )
    missing = [
        f"{verb} {resource}{'/' if subresource else ''}{subresource}"
        for (verb, resource, subresource), is_allowed in zip(RIGHTS, allowed, strict=True)
        if not is_allowed
    ]
    if missing:
        raise StartError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"The gateway's account may not {', '.join(missing)} in namespace {cluster.namespace}.",
            next_step="Give it the Role that the chart makes for the gateway.",
        )


def _start_error(error: Exception, cluster: Cluster | None) -> StartError:
    if isinstance(error, StartError):
        return error
    if isinstance(error, ConfigError):
        message, next_step = "There is no cluster to use.", "Set a kubeconfig, or use the local backend."
    elif isinstance(error, RefusedError):
        message = f"The cluster at {cluster.host if cluster else '?'} refuses the gateway."
        next_step = "Check the kubeconfig's or the service account's credentials and the gateway's Role."
    else:
        message = f"The cluster at {cluster.host if cluster else '?'} can't be reached."
        next_step = "Check that it runs and that the kubeconfig's address is right, or use the local backend."
    cause = str(error) or f"no answer within {START_TIMEOUT:.0f} seconds"
    return StartError(ErrorCode.BACKEND_UNAVAILABLE, message, cause=cause, next_step=next_step)


def _lost(cause: str) -> SandpodError:
    return SandpodError(
        ErrorCode.SANDBOX_LOST,
        "The sandbox is lost, with the files in it.",
        cause=cause,
        next_step="Call create_sandbox for a new one.",
    )
