"""Composes the operator and keeps its parts running; when one ends, the process ends and Kubernetes restarts it."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import web

from sandpod_kube.client import KubeClient
from sandpod_kube.configuration import load
from sandpod_kube.errors import ClusterError
from sandpod_kube.resources import EVENTS, LEASES
from sandpod_operator.controllers import watches
from sandpod_operator.controllers.context import Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.controllers.namespaces import Found, NamespacesChangedError, find_namespaces
from sandpod_operator.controllers.orphan_gc import OrphanCollector
from sandpod_operator.controllers.reconciler import Reconciler
from sandpod_operator.controllers.tenants import TenantController
from sandpod_operator.manager.event_recorder import EventPoster
from sandpod_operator.manager.health import Health, create_app
from sandpod_operator.manager.leader_election import Elector, build_heartbeat
from sandpod_operator.manifests.tenant import Content
from sandpod_operator.metrics import Metrics
from sandpod_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)

OK: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2
_SHUTDOWN: Final = 10

utc_now = partial(datetime.now, UTC)


class Process(NamedTuple):
    """What stays when the operator begins anew with other namespaces."""

    cluster: KubeClient
    settings: OperatorSettings  # that it was started with
    content: Content | None  # of the namespaces of tenants that are made on first use
    metrics: Metrics
    health: Health
    stop: asyncio.Event


async def run(settings: OperatorSettings) -> int:
    """Run the operator until a signal ends it or a part of it fails, and return the exit code.

    It is 0 after a signal, 1 when a part failed or the Lease was lost, 2 when the cluster can't be used.
    """
    metrics = Metrics()
    stop = asyncio.Event()
    _install_signals(stop)
    try:
        content = read_content(settings.tenant_manifests)
        configuration = await load()
    except (ClusterError, OSError, ValueError) as error:
        return _unusable(str(error))
    cluster = KubeClient(
        configuration, manager="sandpod-operator", timeout=settings.request_timeout, on_write=metrics.count_write
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        found = await find_namespaces(cluster, settings)
        if found.trouble:
            return _unusable(found.trouble)
        health = Health(settings, metrics)
        server = web.AppRunner(create_app(health, metrics), access_log=None)
        stack.push_async_callback(server.cleanup)
        if trouble := await _listen(server, settings):
            return _unusable(trouble)
        process = Process(cluster, settings, content, metrics, health, stop)
        elector = Elector(cluster, settings, utc_now)
        # Not before the end: whoever begins anew with other namespaces keeps it.
        stack.push_async_callback(elector.release)
        return await serve(process, elector, found)


async def serve(process: Process, elector: Elector, found: Found) -> int:
    """Run the operator for the namespaces that were found, and anew whenever there are others; return the exit code."""
    while found.trouble is None:
        for namespace in found.left_out:
            _log.error("namespace %s is left out, since it can't be read; is it there, with its Role?", namespace)
        _install_signals(process.stop)  # kopf may have taken them, and be gone before it gave them back
        try:
            return await Operator(process, elector, found.usable).run()
        except NamespacesChangedError as error:
            _log.warning("%s", error)
        found = await find_namespaces(process.cluster, process.settings)
    return _unusable(found.trouble)


def read_content(path: Path | None) -> Content | None:
    """Return what tenants get that are made on first use; None where none are made.

    Raises OSError: the file can't be read. Raises ValueError: it is not such a file.
    """
    if path is None:
        return None
    try:
        return Content.parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not what tenants get: {error}") from error


def _unusable(text: str) -> int:
    sys.stderr.write(f"sandpod-operator: {text}\n")
    return UNUSABLE


def _install_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _listen(server: web.AppRunner, settings: OperatorSettings) -> str | None:
    """Serve health and metrics over HTTP, and return why that is impossible, or None."""
    host, port = settings.http_host, settings.http_port
    await server.setup()
    try:
        await web.TCPSite(server, host, port).start()
    except OSError as error:
        return f"can't listen on {host}:{port} ({error.strerror}); set another http_port"
    return None


class Operator:
    """The parts, joined."""

    def __init__(self, process: Process, elector: Elector, namespaces: tuple[str, ...]) -> None:
        cluster, configured, content, metrics, self._health, self._stop = process
        settings = configured.model_copy(update={"namespaces": namespaces})
        self._cluster, self._configured, self._settings, self._elector = cluster, configured, settings, elector
        self._events = EventPoster(lambda event: cluster.create(EVENTS, event), metrics, utc_now)
        self._context = Context.create(
            cluster=cluster, settings=settings, metrics=metrics, clock=utc_now, emit=self._events.emit
        )
        self._dispatcher = Dispatcher(self._context)
        self._reconciler = Reconciler(self._context, self._dispatcher)
        self._orphans = OrphanCollector(self._context, self._dispatcher)
        self._tenants = content and TenantController(
            cluster=cluster, settings=configured, content=content, clock=utc_now, usable=namespaces
        )

    async def run(self) -> int:
        """Wait for the Lease, then work until stopped or broken; the Lease stays with this replica.

        Raises NamespacesChangedError: other namespaces are there, or can be read, than it was given.
        """
        _log.info("%s waits for the Lease", self._settings.identity)
        if not await self._acquired():
            return OK
        _log.info("%s is active for %s", self._settings.identity, ", ".join(self._settings.namespaces))
        self._health.lead(self._settings.namespaces)
        lease = asyncio.create_task(self._elector.keep(), name="lease")
        try:
            # It may have waited for days.
            await self._check_namespaces()
            # Everything is known before anything is decided; the Lease is renewed meanwhile.
            await self._dispatcher.resync()
            # A long list may have outlived the Lease: then no worker may begin.
            return _explain({lease}) if lease.done() else await self._work(lease)
        except ClusterError as error:
            _log.error("the first list failed: %s", error)
            return FAILED
        finally:
            await _cancel({lease})

    async def _acquired(self) -> bool:
        waiting = asyncio.create_task(self._elector.acquire())
        stopped = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        await _cancel({waiting, stopped})
        if waiting in done:
            waiting.result()  # An election that broke is not one that was won.
        return waiting in done

    async def _check_namespaces(self) -> None:
        """Raise NamespacesChangedError where other namespaces can be read than those that it was given."""
        found = await find_namespaces(self._cluster, self._configured)
        if found.trouble is None and found.usable != self._settings.namespaces:
            raise NamespacesChangedError(f"begins anew, since it can now read {', '.join(found.usable)}")

    async def _follow_namespaces(self) -> None:
        """Check them at an interval, and as soon as there is a new one."""
        made = asyncio.Event() if self._tenants is None else self._tenants.made
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_timeout / 2):
                    await made.wait()
            made.clear()
            await self._check_namespaces()

    async def _work(self, lease: asyncio.Task[None]) -> int:
        ready, end_watch = asyncio.Event(), asyncio.Event()
        lost = (lambda _: None) if self._tenants is None else self._tenants.lost
        seen = watches.create_sink(self._dispatcher, self._health.beat, lost)
        parts = {
            "watch": watches.watch(seen, self._cluster.access, self._settings, ready=ready, stop=end_watch),
            "dates": self._context.queue.run_dates(),
            "sweep": _every(self._settings.sweep_interval, "sweep", self._orphans.sweep),
            "resync": self._resync(),
            "events": self._events.run(),
            "namespaces": self._follow_namespaces(),
        }
        if self._tenants is not None:
            parts["tenants"] = self._tenants.run()
        for namespace in self._settings.namespaces:
            name = f"heartbeat in {namespace}"
            parts[name] = _every(self._settings.heartbeat_interval, name, partial(self._beat, namespace), at_once=True)
        for number in range(self._settings.workers):
            parts[f"worker {number}"] = self._context.queue.run_worker(self._reconciler.reconcile)
        tasks = {lease, *(asyncio.create_task(part, name=name) for name, part in parts.items())}
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        # kopf takes the signals when it starts; from then on they are ours again.
        signals = asyncio.create_task(self._retake_signals(ready), name="signals")
        done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        end_watch.set()
        await _cancel({*tasks, stopped, signals})
        return OK if stopped in done else _explain(done)

    async def _retake_signals(self, ready: asyncio.Event) -> None:
        await ready.wait()
        _install_signals(self._stop)

    async def _resync(self) -> None:
        """List all anew once the watches are open, and then at an interval.

        What went between the first list and theirs is told by no event.
        """
        interval = self._settings.resync_interval
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await self._health.heard.wait()
        await _every(interval, "resync", self._dispatcher.resync, at_once=True)

    async def _beat(self, namespace: str) -> None:
        await self._cluster.apply(LEASES, build_heartbeat(namespace, self._settings.identity, utc_now()))


async def _every(seconds: float, name: str, work: Callable[[], Awaitable[None]], *, at_once: bool = False) -> None:
    """Repeat some work at an interval, even if the API server does not answer."""
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            await work()
        except ClusterError as error:
            _log.warning("the %s was not finished: %s", name, error)
        await asyncio.sleep(seconds)


def _explain(done: set[asyncio.Task[Any]]) -> int:
    """Return the exit code for parts that ended. Raises NamespacesChangedError: that is why, and no part failed."""
    errors = {task: None if task.cancelled() else task.exception() for task in done}
    if all(isinstance(error, NamespacesChangedError) for error in errors.values()):
        raise next(filter(None, errors.values()))
    for task, error in errors.items():
        _log.error("%s ended: %s", task.get_name(), error or "it must not", exc_info=error)
    return FAILED


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_SHUTDOWN)
