"""Keeps the store of Sandboxes as the API server has them: one list, then a watch, over again when it breaks.

A watch that ends goes on where it was; one that is too old (410) or reports an error starts anew with a list. Errors
are waited out with a growing pause, for ever: what is in the store stays usable meanwhile, and whoever writes finds out
by the answer.
"""

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from sandpod_api import names
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_kube.client import PAGE, KubeClient
from sandpod_kube.errors import RefusedError, UnreachableError
from sandpod_kube.resources import SANDBOXES

logger = logging.getLogger(__name__)

SELECTOR: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
BACK_OFF: Final = (0.0, 0.2, 1.0, 3.0, 10.0)
"""Seconds from the begin of a try to the next after the first, second, ... failure in a row; the last for all that
follow. A tenth is added at random, so that many gateways do not come back at the same moment. A watch that was dead for
longer before that was known is no reason to wait once more."""


@dataclass(eq=False)
class SandboxWatch:
    """Feeds one store from one namespace."""

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
            await self._pause(began)

    async def _pause(self, began: float) -> None:
        pause = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
        self._failures += 1
        pause += random.random() * pause / 10  # noqa: S311 # no secret: spreads load
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
        watch = self.client.watch(SANDBOXES, self.namespace, SELECTOR, self._version, silence=self.silence)
        async with contextlib.aclosing(watch) as events:
            async for event in events:
                self._take(event)
                self._failures, came = 0, True
        return came

    def _take(self, event: dict[str, Any]) -> None:
        """Take one event; RefusedError where it says that the watch has ended for a reason."""
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
