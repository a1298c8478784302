"""Waits until a claimed sandbox is Ready, or says why it will not be, long before any timeout; resumes suspended ones.

It looks at the watch's cache, and asks the API server itself only should the watch be stuck.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import status_of
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import errors as claim_errors
from sandpod_gateway.backends.kubernetes.cluster import Cluster, translated
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.tasks import Background
from sandpod_kube.errors import ClusterError, NotFoundError

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks, should the watch say nothing: for failures that count only when they last."""
REREAD_EVERY: Final = 5
"""Looks after which the sandbox is read from the API server."""

Touch = Callable[[str], Awaitable[None]]
"""Notes that a sandbox is in use; bounds its own writes."""


@dataclass(eq=False)
class Waker:
    """All waits for sandboxes, and all resumes, of one gateway."""

    cluster: Cluster
    store: SandboxStore
    settings: KubernetesSettings
    background: Background
    touch: Touch
    _waking: dict[str, asyncio.Task[Sandbox]] = field(default_factory=dict, init=False)

    async def wake(self, name: str) -> Sandbox:
        """Return the sandbox once it is Ready; a suspended one is resumed, with one write for all who wait for it.

        A caller's cancel does not stop it: others may wait for it too.

        Raises:
            SandpodError: It can't be resumed, or will not become Ready.
        """
        task = self._waking.get(name)
        if task is None:
            task = self._waking[name] = self.background.start(self._wake(name))
            task.add_done_callback(lambda _: self._waking.pop(name, None))
        return await asyncio.shield(task)

    async def wait(self, name: str, generation: int = 0) -> Sandbox:
        """Return the sandbox once it is Ready by a status of the generation, so that it is none of before a resume.

        Raises:
            SandpodError: It will not become so, or not in time.
        """
        since: dict[str, float] = {}

        def look() -> Sandbox | None:
            sandbox = self.store.get(name)
            if sandbox is None:
                raise claim_errors.start_deleted()
            if (failure := claim_errors.start_failure(sandbox)) is not None:
                now = time.monotonic()
                if now - since.setdefault(failure.error.code, now) >= failure.patience:
                    raise failure.error
                return None
            since.clear()
            # A watch that is behind may still show it as it was before it was claimed.
            is_news = sandbox.spec.claim is not None and (sandbox.status.observed_generation or 0) >= generation
            return sandbox if is_news and status_of(sandbox) == "Ready" else None

        end = time.monotonic() + self.settings.cold_start_timeout
        for looks in itertools.count(1):
            left = end - time.monotonic()
            if left <= 0:
                break
            if (found := await self.store.until(look, min(left, LOOK_AGAIN))) is not None:
                return found
            # What someone waits for is in use: a short idle timeout must not end it while it starts.
            await self.touch(name)
            if looks % REREAD_EVERY == 0:
                await self._reread(name)
        raise claim_errors.start_timeout(self.store.get(name), self.settings.cold_start_timeout)

    async def _wake(self, name: str) -> Sandbox:
        sandbox = self.store.get(name)
        generation = 0
        if sandbox is not None and sandbox.spec.operating_mode == "Suspended":
            claim_errors.check_limits(0, self.store.live_total, self.settings)
            with translated("a suspended sandbox was resumed"):
                generation = (await self._resume(name)).metadata.generation
        return await self.wait(name, generation)

    async def _resume(self, name: str) -> Sandbox:
        used = {names.ANNOTATION_LAST_ACTIVITY: rfc3339(datetime.now(UTC))}
        patch = {"metadata": {"annotations": used}, "spec": {"operatingMode": "Running"}}  # again, it changes nothing
        try:
            return self.store.take_answer(await self.cluster.merge_patch(names.SANDBOXES, name, patch))
        except NotFoundError as error:
            raise claim_errors.start_deleted() from error

    async def _reread(self, name: str) -> None:
        try:
            self.store.take_answer(await self.cluster.get(names.SANDBOXES, name))
        except NotFoundError:
            self.store.remove(name)
        except ClusterError as error:
            logger.info("sandbox %s can't be read while it starts: %s", name, error)
