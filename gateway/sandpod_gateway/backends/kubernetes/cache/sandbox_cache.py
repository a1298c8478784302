"""The gateway's own copy of the namespace's Sandboxes, so that looking one up costs no request, and what fills it.

The store takes in what the watch reports and the answers to this gateway's own requests: an own write counts at once.
It does no I/O. Everything is bounded by the number of Sandboxes in the namespace.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import is_claimable, is_live, takes_pod
from sandpod_kube.client import PAGE, KubeClient
from sandpod_kube.errors import ClusterError, RefusedError, UnreachableError
from sandpod_kube.object_cache import Listing, ObjectCache
from sandpod_kube.resources import SANDBOXES, Key

logger = logging.getLogger(__name__)

SELECTOR: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
BACK_OFF: Final = (0.0, 0.2, 1.0, 3.0, 10.0)
"""Seconds from the start of a try to the next after the first, second, ... failure in a row; the last for all that
follow. Up to a tenth is added at random, so that many gateways do not come back at the same moment."""

T = TypeVar("T")


class SandboxStore:
    """Sandboxes by name, the claimed ones by owner, the claimable ones by template."""

    def __init__(self) -> None:
        self._cache = ObjectCache[Sandbox](self._changed)
        self._owned: dict[str, dict[str, Sandbox]] = {}
        self._warm: dict[str, dict[str, Sandbox]] = {}
        self._live: Counter[str] = Counter()  # by owner
        self._pods = 0  # of live ones
        self._reached = -1
        self._news = asyncio.Event()  # set, and replaced, with each change

    def get(self, name: str) -> Sandbox | None:
        """Return the Sandbox of that name."""
        return self._cache.get(_key(name))

    def owned(self, owner: str) -> list[Sandbox]:
        """Return all Sandboxes that the owner claimed, ended ones included."""
        return list(self._owned.get(owner, {}).values())

    def claimed(self) -> list[Sandbox]:
        """Return all Sandboxes that somebody claimed, ended ones included."""
        return [sandbox for owned in self._owned.values() for sandbox in owned.values()]

    def warm(self, template: str) -> list[Sandbox]:
        """Return the template's Sandboxes that can be claimed."""
        return list(self._warm.get(template, {}).values())

    def warm_counts(self) -> dict[str, int]:
        """Return how many Sandboxes of each template can be claimed."""
        return {template: len(sandboxes) for template, sandboxes in self._warm.items()}

    def live(self, owner: str) -> int:
        """Return how many Sandboxes the owner has that have not ended."""
        return self._live[owner]

    @property
    def live_total(self) -> int:
        """Claimed Sandboxes that have not ended and have a pod, of all owners: suspended ones take no room."""
        return self._pods

    def take(self, body: dict[str, Any], listing: Listing[Sandbox] | None = None) -> Sandbox | None:
        """Take in a Sandbox, as part of a full list where one is given, and return it. A newer known state stays.

        One that this version does not understand is left out until it does; then None is returned.
        """
        metadata = body.get("metadata") or {}
        key = _key(str(metadata.get("name")))
        try:
            sandbox = Sandbox.model_validate(body)
        except ValidationError:
            logger.warning("a Sandbox that this version does not understand is left out")
            self._cache.drop(key)
            return None
        (listing or self._cache).put(key, metadata, lambda: sandbox)
        return sandbox

    def take_answer(self, body: dict[str, Any]) -> Sandbox:
        """Take in the Sandbox that the API server answered with. Raises ClusterError: this version can't read it."""
        sandbox = self.take(body)
        if sandbox is None:
            raise ClusterError("the API server answered with a Sandbox that this version does not understand")
        return sandbox

    def remove(self, name: str, uid: str = "") -> None:
        """Take in that a Sandbox is gone: that of a uid, or the one that is known, whatever the watch still reports."""
        self._cache.remove(_key(name), uid)

    def reached(self, version: str) -> None:
        """Take in that the watch has reported every write up to a resource version."""
        if version.isdecimal():
            self._reached = int(version)
            self._wake()

    def has_reached(self, version: str) -> bool:
        """Return whether the watch has reported every write up to a resource version."""
        return version.isdecimal() and int(version) <= self._reached

    def listing(self) -> AbstractContextManager[Listing[Sandbox]]:
        """Take in a full list; to be entered before the list is asked for."""
        return self._cache.listing(SANDBOXES.kind, "")

    async def until(self, check: Callable[[], T | None], timeout: float) -> T | None:  # noqa: ASYNC109 # None is an answer here
        """Return what `check` gives, called now and after every change, or None after so many seconds without."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (found := check()) is None:
                    await self._news.wait()
                return found
        return None

    def _changed(self, key: Key, old: Sandbox | None, new: Sandbox | None) -> None:
        if old is not None:
            # A template stays known with no warm sandbox left: a gauge that vanishes is not the same as one at zero.
            self._warm.get(old.spec.template_ref.name, {}).pop(key.name, None)
            self._count(old, -1)
        if new is not None:
            if is_claimable(new):
                self._warm.setdefault(new.spec.template_ref.name, {})[key.name] = new
            self._count(new, 1)
        self._wake()

    def _count(self, sandbox: Sandbox, step: int) -> None:
        """Add a Sandbox to its owner's, or take it from them (-1)."""
        if sandbox.spec.claim is None:
            return
        owner = sandbox.spec.claim.owner
        owned = self._owned.setdefault(owner, {})
        if step > 0:
            owned[sandbox.metadata.name] = sandbox
        else:
            del owned[sandbox.metadata.name]
        self._live[owner] += step * is_live(sandbox)
        self._pods += step * takes_pod(sandbox)
        if not owned:
            del self._owned[owner], self._live[owner]

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _key(name: str) -> Key:
    return Key(SANDBOXES.kind, "", name)


@dataclass(eq=False)
class SandboxWatch:
    """Keeps one store as the API server has one namespace: a list, then a watch, over again when it breaks.

    A watch that ends goes on where it was; one that is too old (410) or reports an error starts anew with a list.
    Errors are waited out with a growing pause, for ever: what is in the store stays usable meanwhile, and whoever
    writes finds out by the answer.
    """

    client: KubeClient
    namespace: str
    store: SandboxStore
    silence: float  # seconds without an event after which a watch is opened anew
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _version: str = field(default="", init=False)  # what the store shows; empty where a new list is needed
    _failures: int = field(default=0, init=False)

    async def start(self) -> None:
        """Fill the store, then keep it filled in the background. Raises ClusterError: the first list failed."""
        await self._list()
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop; the store stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> None:
        while True:
            began = time.monotonic()
            try:
                if not self._version:
                    await self._list()
                if await self._watch():
                    continue
            except UnreachableError as error:
                # What was seen is seen: the next watch goes on after it.
                logger.warning("the watch of the sandboxes was interrupted: %s", error)
            except RefusedError as error:
                self._version = ""
                if not error.expired:
                    logger.warning("the watch of the sandboxes was refused: %s", error)
            except Exception:
                # The outermost loop: a bug must not leave a gateway that looks alive and knows nothing new.
                self._version = ""
                logger.exception("watching the sandboxes failed")
            pause = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)] * random.uniform(1, 1.1)  # noqa: S311 # no secret
            self._failures += 1
            # A watch that was dead for longer before that was known is no reason to wait once more.
            await asyncio.sleep(max(0.0, began + pause - time.monotonic()))

    async def _list(self) -> None:
        query = {"labelSelector": SELECTOR, "limit": str(PAGE)}
        with self.store.listing() as listing:
            while True:
                page = await self.client.list_page(SANDBOXES, self.namespace, query)
                for body in page.get("items") or []:
                    self.store.take(body, listing)
                meta = page.get("metadata") or {}
                if not meta.get("continue"):
                    break
                query["continue"] = meta["continue"]
        self._version = str(meta.get("resourceVersion") or "")
        self.store.reached(self._version)

    async def _watch(self) -> bool:
        """Follow one watch to its end. Return whether anything came: where nothing did, there is no reason to hurry."""
        came = False
        watch = self.client.watch(
            SANDBOXES, self.namespace, {"labelSelector": SELECTOR}, self._version, silence=self.silence
        )
        async with contextlib.aclosing(watch):
            async for event in watch:
                self._take(event)
                self._failures, came = 0, True
        return came

    def _take(self, event: dict[str, Any]) -> None:
        """Take in one event. Raises RefusedError: it says that the watch has ended for a reason."""
        kind, body = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = int(body.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
            raise RefusedError(code, message=str(body.get("message") or ""))
        meta = body.get("metadata") or {}
        if kind in {"ADDED", "MODIFIED"}:
            self.store.take(body)
        elif kind != "BOOKMARK":
            self.store.remove(str(meta.get("name")), str(meta.get("uid")))
        self._version = str(meta.get("resourceVersion") or self._version)
        self.store.reached(self._version)
