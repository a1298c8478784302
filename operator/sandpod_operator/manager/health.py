"""Whether the operator does its work, and the HTTP server that says so: /healthz, /readyz, /metrics.

The proof is not that the process runs but that watch events arrive: every few seconds the active replica writes a
heartbeat Lease in each sandbox namespace, and kopf's watch must deliver its event.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sandpod_operator.metrics import Metrics
from sandpod_operator.settings import OperatorSettings


class Health:
    """What is known of the operator's own state."""

    def __init__(
        self, settings: OperatorSettings, metrics: Metrics, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._metrics, self._monotonic = settings, metrics, monotonic
        self._beats: dict[str, float] = {}
        self._silent: set[str] = set()  # namespaces of which none has arrived yet
        self.heard = asyncio.Event()
        """Set once a heartbeat's event has arrived from every namespace."""

    def lead(self, namespaces: Sequence[str]) -> None:
        """Note that this replica is active for these namespaces from now on: heartbeats are due."""
        for namespace in self._beats.keys() - set(namespaces):
            self._metrics.watch_age.remove(namespace)
        self._beats = dict.fromkeys(namespaces, self._monotonic())
        self._silent = set(namespaces)
        self.heard.clear()
        self._metrics.leader.set(1)
        for namespace in namespaces:
            self._metrics.watch_age.labels(namespace).set_function(partial(self._age, namespace))

    def _age(self, namespace: str) -> float:
        return self._monotonic() - self._beats[namespace]

    def beat(self, namespace: str, holder: str) -> None:
        """Note that a heartbeat's event arrived; only our own counts."""
        if namespace in self._beats and holder == self._settings.identity:
            self._beats[namespace] = self._monotonic()
            self._silent.discard(namespace)
            if not self._silent:
                self.heard.set()

    def trouble(self) -> str | None:
        """Return what is wrong, or None. A replica that waits is healthy."""
        limit = self._settings.heartbeat_timeout
        late = sorted(namespace for namespace in self._beats if self._age(namespace) > limit)
        return f"no watch event for {limit:g} s in {', '.join(late)}" if late else None

    @property
    def role(self) -> str:
        """Active or standby."""
        return "active" if self._beats else "standby"


def create_app(health: Health, metrics: Metrics) -> web.Application:
    """Return the HTTP application."""

    async def healthz(_: web.Request) -> web.Response:
        trouble = health.trouble()
        return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)

    async def readyz(_: web.Request) -> web.Response:
        # A standby is ready: it can take over, and a rolling update waits for it.
        return web.Response(text=f"{health.role}\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)])
    return app
