"""Waits until a claimed sandbox is Ready, or says why it will not be, long before any timeout.

Called by `claimer.py`. It looks at the store, and asks the API server itself only should the watch be stuck.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sandpod_api import names
from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import parse, status_of
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import errors as claim_errors
from sandpod_gateway.backends.kubernetes.cluster import Cluster
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import ClusterError, RefusedError

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks, should the watch say nothing: for failures that count only when they last."""
REREAD_EVERY: Final = 5
"""Looks after which the sandbox is read from the API server."""


Touch = Callable[[str], Awaitable[None]]
"""Notes that a sandbox is in use; bounds its own writes."""


def note(store: SandboxStore, body: dict[str, Any]) -> Sandbox:
    """Put an object that the API server answered with into the store.

    Raises:
        ClusterError: It is no Sandbox that this version understands.
    """
    sandbox = parse(body)
    if sandbox is None:
        raise ClusterError("the API server answered with a Sandbox that this version does not understand")
    store.put(sandbox)
    return sandbox


class Readiness:
    """Waits for sandboxes of one store."""

    def __init__(self, cluster: Cluster, store: SandboxStore, timeout: float, touch: Touch) -> None:
        self._cluster = cluster
        self._store = store
        self._timeout = timeout
        self._touch = touch

    async def wait(self, name: str, generation: int = 0) -> Sandbox:
        """Return the sandbox once it is Ready.

        Args:
            name: The sandbox's.
            generation: The generation that its status has to be about, so that Ready is none of before a resume.

        Raises:
            SandpodError: It will not become so, or not in time.
        """
        verdict = self._verdict(name, generation)
        end = time.monotonic() + self._timeout
        looks = 0
        while (left := end - time.monotonic()) > 0:
            found: Sandbox | SandpodError | None = await self._store.until(verdict, min(left, LOOK_AGAIN))
            if isinstance(found, SandpodError):
                raise found
            if found is not None:
                return found
            looks += 1
            # What someone waits for is in use: a short idle timeout must not end it while it starts.
            await self._touch(name)
            if looks % REREAD_EVERY == 0:
                await self._reread(name)
        raise claim_errors.start_timeout(self._store.get(name), self._timeout)

    def _verdict(self, name: str, generation: int) -> Callable[[], Sandbox | SandpodError | None]:
        """Return what looks at the sandbox: it, an error, or None while it may still become ready."""
        since: dict[str, float] = {}

        def look() -> Sandbox | SandpodError | None:
            sandbox = self._store.get(name)
            if sandbox is None:
                return claim_errors.start_deleted()
            failure = claim_errors.start_failure(sandbox)
            if failure is None:
                since.clear()
                # A watch that is behind may still show it as it was before it was claimed.
                is_news = sandbox.spec.claim is not None and (sandbox.status.observed_generation or 0) >= generation
                return sandbox if is_news and status_of(sandbox) == "Ready" else None
            now = time.monotonic()
            return failure.error if now - since.setdefault(failure.error.code, now) >= failure.patience else None

        return look

    async def _reread(self, name: str) -> None:
        try:
            note(self._store, await self._cluster.get(names.SANDBOXES, name))
        except RefusedError as error:
            if error.not_found:
                self._store.deleted(name)
        except ClusterError as error:
            logger.info("sandbox %s can't be read while it starts: %s", name, error)
