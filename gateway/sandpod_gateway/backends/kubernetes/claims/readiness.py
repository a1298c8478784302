"""Waits until a claimed sandbox is Ready, or says why it will not be, long before any timeout; resumes suspended ones.

It looks at the watch's cache, and asks the API server itself only should the watch be stuck. What a condition's reason
means for a caller is decided here alone. Work that goes on after the call that started it is in `Background`.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import SENTENCES, Condition, Reason
from sandpod_api.types import Sandbox
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.cache.records import blocking, status_of
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims.patches import check_limits
from sandpod_gateway.backends.kubernetes.cluster import Cluster, translated
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import ClusterError, NotFoundError
from sandpod_telemetry import attributes, tracing

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that work in progress gets to finish when the backend closes."""
LOOK_AGAIN: Final = 1.0
"""Seconds between two looks, should the watch say nothing: for failures that count only when they last."""
REREAD_EVERY: Final = 5
"""Looks after which the sandbox is read from the API server."""
ROOM_PATIENCE: Final = 10.0
"""Seconds that nodes or quota may be full before a claim gives up: another sandbox may be on its way out, as a warm one
that the operator gives up for it."""

Touch = Callable[[str], Awaitable[None]]
"""Notes that a sandbox is in use; bounds its own writes."""

_DELETED: Final = "Someone deleted it meanwhile."
_ASK: Final = "Tell the administrator; `kubectl describe sandbox` shows it too."
_CODES: Final[dict[Reason, tuple[ErrorCode, float, str]]] = {
    Reason.IMAGE_PULL_FAILED: (
        ErrorCode.IMAGE_PULL_FAILED,
        0.0,
        "Use another template, or tell the administrator: the image's name or the pull secret is wrong.",
    ),
    Reason.UNSCHEDULABLE: (
        ErrorCode.UNSCHEDULABLE,
        ROOM_PATIENCE,
        "Try again later, or ask the administrator for more or larger nodes.",
    ),
    Reason.QUOTA_EXCEEDED: (
        ErrorCode.QUOTA_EXCEEDED,
        ROOM_PATIENCE,
        "Close a sandbox that is not needed, or ask the administrator for more quota.",
    ),
    Reason.WORKSPACE_LOST: (ErrorCode.SANDBOX_LOST, 0.0, "Call create_sandbox for a new one."),
    Reason.TEMPLATE_NOT_FOUND: (ErrorCode.INVALID_ARGUMENT, 0.0, "Use a template that the server offers."),
    Reason.PROFILE_NOT_FOUND: (ErrorCode.INVALID_ARGUMENT, 0.0, "Use one of the template's network profiles."),
    Reason.PROFILE_REFUSED: (
        ErrorCode.INVALID_ARGUMENT,
        0.0,
        "Use another of the template's network profiles, or ask the administrator to narrow this one.",
    ),
}
# What the scheduler says of a pod whose workspace has no volume, and the API server of one more claim than the quota.
_NO_VOLUME: Final = "persistentvolumeclaim"
_ASK_FOR_VOLUME: Final = (
    "Ask the administrator: the volume of the persistent workspace can't be made, for want of a StorageClass, of room "
    "or of quota. Or create a sandbox without one."
)
_FATAL: Final = frozenset({Reason.ADMISSION_REFUSED, Reason.START_FAILED, Reason.NETWORK_OPEN, Reason.KERNEL_SHARED})


class Background:
    """Tasks that nobody waits for. Their number is the callers' business to bound."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that a cancel of the caller does not reach. An error that nobody asks for is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.debug("background work ended with %r", task.exception())

    async def close(self) -> None:
        """Wait for what is in progress, at most `CLOSE_TIMEOUT` seconds, then cancel it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(eq=False)
class Waker:
    """All waits for sandboxes, and all resumes, of one gateway."""

    cluster: Cluster
    store: SandboxStore
    settings: KubernetesSettings
    background: Background
    touch: Touch
    _waking: dict[str, asyncio.Task[Sandbox]] = field(default_factory=dict, init=False)
    _in_progress: Counter[str] = field(default_factory=Counter, init=False)  # claims by owner, and resumes

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
        with tracing.span("sandbox.start", {attributes.SANDBOX: name}):
            return await self._until_ready(name, generation)

    async def _until_ready(self, name: str, generation: int) -> Sandbox:
        since: dict[str, float] = {}

        def look() -> Sandbox | None:
            sandbox = self.store.get(name)
            if sandbox is None:
                raise _no_start(_DELETED)
            if (failure := start_failure(sandbox)) is not None:
                (error, patience), now = failure, time.monotonic()
                tracing.note({attributes.BLOCKED_BY: error.code})
                if now - since.setdefault(error.code, now) >= patience:
                    raise error
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
        raise start_timeout(self.store.get(name), self.settings.cold_start_timeout)

    async def _wake(self, name: str) -> Sandbox:
        sandbox = self.store.get(name)
        if sandbox is None or sandbox.spec.operating_mode != "Suspended":
            return await self.wait(name)
        used = {names.ANNOTATION_LAST_ACTIVITY: rfc3339(datetime.now(UTC))}
        patch = {"metadata": {"annotations": used}, "spec": {"operatingMode": "Running"}}  # again, it changes nothing
        with translated("a suspended sandbox was resumed"), self._admitted():
            try:
                resumed = self.store.take_answer(await self.cluster.merge_patch(names.SANDBOXES, name, patch))
            except NotFoundError as error:
                raise _no_start(_DELETED) from error
        return await self.wait(name, resumed.metadata.generation)

    @contextmanager
    def _admitted(self, owner: str = "") -> Iterator[None]:
        """Hold one place within the limits until the sandbox is in the store; a resumed one is its owner's already."""
        owned = self.store.live(owner) + self._in_progress[owner] if owner else 0
        total = self.store.live_total + self._in_progress.total()
        check_limits(owned, total, self.settings)
        self._in_progress[owner] += 1
        try:
            yield
        finally:
            self._in_progress -= Counter([owner])  # keeps no zeros

    async def _reread(self, name: str) -> None:
        try:
            self.store.take_answer(await self.cluster.get(names.SANDBOXES, name))
        except NotFoundError:
            self.store.remove(name)
        except ClusterError as error:
            logger.info("sandbox %s can't be read while it starts: %s", name, error)


def start_failure(sandbox: Sandbox) -> tuple[SandpodError, float] | None:
    """Return why a claimed sandbox will not become ready, once that has lasted for some seconds; None while it may."""
    why = blocking(sandbox)
    if why is not None and why.reason in _CODES:
        code, patience, next_step = _CODES[Reason(why.reason)]
        if code != ErrorCode.SANDBOX_LOST and _NO_VOLUME in why.message.lower():
            next_step = _ASK_FOR_VOLUME
        return SandpodError(code, _sentence(why), cause=why.message or None, next_step=next_step), patience
    status = status_of(sandbox)
    if status in {"Failed", "Expired", "Suspended"} or (why is not None and why.reason in _FATAL):
        message = _sentence(why) if why else f"It is {status.lower()}."
        return _no_start(message, why.message or None if why else None), 0.0
    return None


def start_timeout(sandbox: Sandbox | None, seconds: float) -> SandpodError:
    """Return the error of a sandbox that did not become ready in time, with what it was waiting for."""
    if sandbox is not None and (failure := start_failure(sandbox)) is not None:
        return failure[0]
    why = blocking(sandbox) if sandbox is not None else None
    cause = why.message or _sentence(why) if why else "The operator has not said anything of it; is it running?"
    return _no_start(f"It was not ready within {seconds:.0f} seconds.", cause)


def _sentence(condition: Condition) -> str:
    try:
        return SENTENCES[Reason(condition.reason)]
    except ValueError:
        return condition.message or "It is not ready."


def _no_start(message: str, cause: str | None = None) -> SandpodError:
    return SandpodError(
        ErrorCode.BACKEND_ERROR, f"The sandbox did not start. {message}", cause=cause, next_step=f"Try again. {_ASK}"
    )
