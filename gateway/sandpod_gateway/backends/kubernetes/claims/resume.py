"""Resumes suspended sandboxes for calls that use them.

Called by the Kubernetes backend and by `claimer.py`, with whatever a caller holds. One write asks for the pod and tells
the idle clock of the use; the waiting is `readiness.py`'s. Calls that come meanwhile wait for the same pod.
"""

import asyncio
from datetime import UTC, datetime

from sandpod_api import names
from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import errors as claim_errors
from sandpod_gateway.backends.kubernetes.claims import patches as claims
from sandpod_gateway.backends.kubernetes.claims.readiness import Readiness, note
from sandpod_gateway.backends.kubernetes.cluster import Cluster
from sandpod_gateway.backends.kubernetes.errors import translate
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.tasks import Background
from sandpod_kube.errors import ClusterError, RefusedError


class Waker:
    """All resumes of one gateway."""

    def __init__(
        self,
        cluster: Cluster,
        store: SandboxStore,
        settings: KubernetesSettings,
        *,
        readiness: Readiness,
        background: Background,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._settings = settings
        self._readiness = readiness
        self._background = background
        self._waking: dict[str, asyncio.Task[Sandbox]] = {}

    async def wake(self, name: str) -> Sandbox:
        """Return the sandbox once it is Ready. A caller's cancel does not stop it: others may wait for it too.

        Raises:
            SandpodError: It can't be resumed, or will not become Ready.
        """
        task = self._waking.get(name)
        if task is None:
            task = self._waking[name] = self._background.start(self._wake(name))
            task.add_done_callback(lambda _: self._waking.pop(name, None))
        return await asyncio.shield(task)

    async def _wake(self, name: str) -> Sandbox:
        sandbox = self._store.get(name)
        generation = 0
        if sandbox is not None and sandbox.spec.operating_mode == "Suspended":
            total = self._store.live_total
            if total >= self._settings.max_sandboxes:
                raise claim_errors.server_full(total)
            try:
                generation = (await self._resume(name)).metadata.generation
            except ClusterError as error:
                raise translate(error, "a suspended sandbox was resumed") from error
        return await self._readiness.wait(name, generation)

    async def _resume(self, name: str) -> Sandbox:
        patch = claims.resume_patch(datetime.now(UTC))
        try:
            return note(self._store, await self._cluster.merge_patch(names.SANDBOXES, name, patch))
        except RefusedError as error:
            if error.not_found:
                raise claim_errors.start_deleted() from error
            raise
