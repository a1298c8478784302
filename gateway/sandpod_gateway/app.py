"""Composes the server: backend, sandboxes, runs, MCP, and the plain routes around it."""

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
from fastmcp.server.dependencies import get_http_request
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from sandpod_gateway.auth.callers import LOCAL, LOCAL_KEY_ID, Caller
from sandpod_gateway.auth.key_file import WatchedFile
from sandpod_gateway.auth.links import POLL_SECONDS, Links, MemoryStore
from sandpod_gateway.auth.verifier import RESOURCE_PATH, Keys, create_auth
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.capabilities import capabilities, facts
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.links import LinkMaker, Transfers
from sandpod_gateway.files.service import Files
from sandpod_gateway.http.attempts import Attempts
from sandpod_gateway.http.connections import serving_on_loopback
from sandpod_gateway.http.limits import OpenSessions, Requests
from sandpod_gateway.http.routes import FileRoutes, health_routes, metrics_route
from sandpod_gateway.http.transports import Transports
from sandpod_gateway.mcp.calls import chosen_toolsets
from sandpod_gateway.mcp.server import create_mcp
from sandpod_gateway.mcp.toolbox import Parts
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.runs.accounting import BACKGROUND_SECONDS, SANDBOX_SECONDS, Accounting
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.service import Runs
from sandpod_gateway.sandboxes.service import SWEEP_SECONDS, Sandboxes
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage.amounts import Account, account_of
from sandpod_gateway.usage.meter import Meter
from sandpod_gateway.usage.replica import Replica
from sandpod_gateway.usage.stores import FolderStore

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0  # until the API keys are looked for again after a failure


class Gateway:
    """One server over one backend; `running` opens and closes all that it has.

    Raises StartError: the settings would leave it open to all, or the folder for usage can't be written.
    """

    def __init__(self, settings: Settings, backend: Backend) -> None:
        settings.require_keys_or_loopback()
        self._settings = settings
        self._backend = backend
        file = settings.auth.keys_file
        self._key_source = WatchedFile(file) if file is not None else backend.key_source()
        self._keys = Keys()
        oidc, public_url = settings.auth.oidc, settings.links.public_url
        self._has_callers = self._key_source is not None or oidc is not None
        self._auth = create_auth(self._keys, oidc, public_url) if self._has_callers else None
        self.metrics = Metrics()
        self._meter = Meter(settings.quotas, self.metrics)
        self._sandboxes = Sandboxes(backend, self.metrics, self._meter)
        store = backend.usage_store()
        self._accounting = Accounting(backend, self._sandboxes, shared=store is not None)
        if store is None and (folder := settings.usage.directory) is not None:
            store = FolderStore(folder)
            store.open()
        days = settings.usage.days
        self._replica = None if store is None else Replica(store, self._meter, self.metrics, days=days)
        self.metrics.watch_pools(backend.warm)
        self.metrics.open_streams.set_function(self._sandboxes.open_streams)
        limits = settings.limits
        owner_of_key = self._keys.owner_of_key if self._has_callers else {LOCAL_KEY_ID: LOCAL.owner}.get
        self._links = Links(backend.link_store() or MemoryStore(), owner_of_key)
        files = Files(self._sandboxes, self.metrics, max_upload=limits.upload_bytes, default_read=limits.output_chars)
        transfers = Transfers(files, settings.links.upload_bytes)
        self._file_routes = FileRoutes(self._links, transfers, self._account_of_link)
        self._loopback: str | None = None
        self._installer = Installer(self._sandboxes, settings.packages)
        parts = Parts(
            runs=Runs(self._sandboxes, limits, self.metrics, self._installer),
            background=BackgroundRuns(self._sandboxes, limits),
            sandboxes=self._sandboxes,
            files=files,
            links=LinkMaker(files, self._links, expires=settings.links.expires, address=self._address),
            installer=self._installer,
            metrics=self.metrics,
        )
        self.mcp = create_mcp(
            parts,
            version=importlib.metadata.version("sandpod"),
            auth=self._auth,
            compat=settings.compat,
            max_calls=limits.max_requests_per_owner,
            toolsets=settings.toolsets,
            facts=facts(settings),
            link_files=settings.links.in_content,
            libraries=settings.libraries,
        )
        self.mcp.resource("sandpod://capabilities", mime_type="application/json")(self._capabilities)

    async def _capabilities(self) -> str:
        """Limits, languages, templates and network profiles of this server."""
        try:
            templates = await self._sandboxes.templates()
        except SandpodError as error:
            logger.warning("the templates can't be listed: %s", error)
            templates = ()  # the rest is still useful
        toolsets = chosen_toolsets(self._settings.toolsets)
        return capabilities(self._settings, self._backend.kind, templates, toolsets=toolsets)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the backend and background tasks until the block is left.

        Raises SandpodError: backend_unavailable. StartError: what holds the API keys can't be read.
        """
        self._installer.open()
        await self._backend.start()
        await self._read_link_keys()
        await self._accounting.learn()
        if self._replica is not None:
            await self._replica.start()
        repeat = partial(every, failures=self.metrics.background_failures)
        work = [
            repeat(SWEEP_SECONDS, self._sandboxes.sweep, task="connections"),
            repeat(POLL_SECONDS, self._links.refresh, task="link_keys"),
            repeat(SANDBOX_SECONDS, self._accounting.charge_sandboxes, task="usage"),
            repeat(BACKGROUND_SECONDS, self._accounting.charge_background, task="usage"),
        ]
        if self._replica is not None:
            loops = (self._replica.follow, self._replica.publish, self._replica.keep)
            work += [repeat(RETRY_SECONDS, loop, task="usage") for loop in loops]
        if self._key_source is not None:
            self._keys.use(await self._key_source.read())
            work.append(repeat(RETRY_SECONDS, partial(self._key_source.follow, self._keys.use), task="api_keys"))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._installer.close()
                await self._close_usage()
                await self._sandboxes.close()
                await self._backend.close()

    def _address(self) -> str | None:
        """Return the address by which the caller knows this server, or None over stdio."""
        if self._settings.links.public_url is not None:
            return self._settings.links.public_url
        try:
            return str(get_http_request().base_url).rstrip("/")
        except RuntimeError:
            return self._loopback

    @asynccontextmanager
    async def links_on_loopback(self) -> AsyncIterator[None]:
        """Serve links on this machine's loopback, for callers over standard input and output, unless it is set off."""
        async with contextlib.AsyncExitStack() as stack:
            if self._settings.links.loopback:
                try:
                    app = Starlette(routes=self._file_routes.routes())
                    self._loopback = await stack.enter_async_context(serving_on_loopback(app))
                except OSError as error:
                    logger.warning("there are no links, since no port can be had: %s", error)
            yield

    async def _close_usage(self) -> None:
        await self._accounting.close()
        try:
            if self._replica is not None:
                await self._replica.close()
        except SandpodError as error:
            # What was kept before is there, and the rest of the server has to be closed.
            logger.error("the last of usage is lost: %s %s", error.message, error.next_step)  # noqa: TRY400

    def _account_of_link(self, key_id: bytes, owner: str, sandbox: str) -> Account:
        """Return to whom the use of a link is charged: its maker, who may have signed in without a key."""
        caller, holder = self._keys.caller_of_key(key_id), self._meter.holder(sandbox)
        if caller is None and holder is not None and account_of(Caller(owner)).user == holder.user:
            return holder
        return account_of(caller or Caller(owner))

    async def _read_link_keys(self) -> None:
        try:
            await self._links.refresh()
        except SandpodError as error:
            # The rest of the server works without links, and the next refresh may succeed.
            logger.error("links are not available yet: %s %s", error.message, error.next_step)  # noqa: TRY400
            self.metrics.background_failures.labels("link_keys").inc()

    def http_app(self) -> Starlette:
        """Return the ASGI app: MCP; health and linked files, which need no key; on loopback, metrics."""
        settings = self._settings
        limits, hosts = settings.limits, settings.allowed_hosts
        if hosts is None:
            hosts = ["*"] if self._has_callers else []  # besides loopback
        transports = Transports(
            self.mcp,
            hosts=hosts,
            origins=settings.allowed_origins or None,
            sessions=OpenSessions(
                per_owner=limits.max_sessions_per_owner, in_all=limits.max_sessions, metrics=self.metrics
            ),
            requests=Requests(per_owner=limits.max_requests_per_owner, metrics=self.metrics),
            attempts=Attempts(self.metrics),
            allow_query_key=settings.auth.allow_query_key,
        )
        for_pages = Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"],
        )
        # With keys, others reach this port: metrics are for the operators of the server.
        registry = self.metrics.registry if not self._has_callers and settings.metrics_port is None else None
        return Starlette(
            routes=[
                *health_routes(self._backend.check, registry, hosts=None if self._has_callers else hosts),
                *self._file_routes.routes(),
                *(self._auth.get_well_known_routes(RESOURCE_PATH) if self._auth is not None else ()),
                Mount("/", transports, middleware=[for_pages] if settings.allowed_origins else []),
            ],
            lifespan=transports.lifespan,
        )

    def metrics_app(self) -> Starlette:
        """Return the ASGI app for the port of metrics."""
        return Starlette(routes=[metrics_route(self.metrics.registry)])


async def every(seconds: float, work: Callable[[], Awaitable[None]], *, task: str, failures: Counter) -> None:
    """Repeat `work` until cancelled, with a pause of so many seconds before each round.

    A round that fails is logged and counted under the task's name, and the next one follows.
    """
    last: str | None = None
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception as error:
            failures.labels(task).inc()
            if repr(error) != last:  # once, not every other second for as long as it lasts
                if isinstance(error, SandpodError):
                    logger.error("%s: %s %s", task, error.message, error.next_step)  # noqa: TRY400 - no bug of ours
                else:
                    logger.exception("%s failed", task)
            last = repr(error)
        else:
            if last is not None:
                logger.info("%s works again", task)
            last = None
