"""Composes the server: backend, sandboxes, runs, MCP, and the plain routes around it."""

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
from fastmcp.server.dependencies import get_http_request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount

from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.api_keys import KeyFile
from sandpod_gateway.auth.callers import LOCAL, LOCAL_KEY_ID, Caller
from sandpod_gateway.auth.factory import create_auth, is_proxied
from sandpod_gateway.auth.key_changes import KeyChanges
from sandpod_gateway.auth.key_file import WatchedFile
from sandpod_gateway.auth.key_management import KeyManager
from sandpod_gateway.auth.links import POLL_SECONDS, Links, MemoryStore
from sandpod_gateway.auth.verifier import RESOURCE_PATH, Keys
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.capabilities import capabilities, facts
from sandpod_gateway.console.session import Sessions
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.faces import Faces
from sandpod_gateway.files.links import LinkMaker, Transfers
from sandpod_gateway.files.service import Files
from sandpod_gateway.http.attempts import Attempts
from sandpod_gateway.http.audit import RefusedRequests
from sandpod_gateway.http.connections import serving_on_loopback
from sandpod_gateway.http.limits import OpenSessions, Requests
from sandpod_gateway.http.mcp.peers import POLL_SECONDS as PEER_SECONDS
from sandpod_gateway.http.mcp.peers import Peers
from sandpod_gateway.http.mcp.transports import Transports
from sandpod_gateway.http.routes import FileRoutes, health_routes, metrics_route
from sandpod_gateway.http.sign_in import in_both_spellings, sign_in_routes
from sandpod_gateway.mcp.calls import chosen_toolsets
from sandpod_gateway.mcp.server import create_guards, create_mcp
from sandpod_gateway.mcp.toolbox import Parts
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.middleware import around
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.periodic import every
from sandpod_gateway.rest.server import create_rest_tools
from sandpod_gateway.runs.accounting import Accounting
from sandpod_gateway.runs.activity import Activities
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.service import Runs
from sandpod_gateway.sandboxes.service import SWEEP_SECONDS, Sandboxes
from sandpod_gateway.settings import Settings
from sandpod_gateway.usage.meter import Meter

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
        self._key_changes = KeyChanges()
        oidc, public_url = settings.auth.oidc, settings.links.public_url
        self._has_callers = self._key_source is not None or oidc is not None
        shared = backend.sign_in_places()
        self._auth = create_auth(self._keys, oidc, public_url, shared) if self._has_callers else None
        self._sign_in_keys = backend.sign_in_key_store() or MemoryStore()
        self.metrics = Metrics()
        version = self._version = importlib.metadata.version("sandpod")
        self._audit = AuditLog(settings.audit, self.metrics, version)
        self._sandboxes = Sandboxes(backend, self.metrics, Meter(settings.quotas, self.metrics))
        self._accounting = Accounting(backend, self._sandboxes, settings.usage, self.metrics)
        self.metrics.watch_pools(backend.warm)
        self.metrics.open_streams.set_function(self._sandboxes.open_streams)
        limits = settings.limits
        owner_of_key = self._keys.owner_of_key if self._has_callers else {LOCAL_KEY_ID: LOCAL.owner}.get
        self._links = Links(backend.link_store() or MemoryStore(), owner_of_key)
        files = Files(self._sandboxes, self.metrics, max_upload=limits.upload_bytes, default_read=limits.output_chars)
        transfers = Transfers(files, settings.links.upload_bytes)
        account = partial(self._accounting.account_of_link, self._keys.caller_of_key)
        self._file_routes = FileRoutes(self._links, transfers, self._audit, account)
        self._loopback: str | None = None
        self.ending = asyncio.Event()  # set when the server stops listening
        self._peers = Peers(settings=settings.peers, metrics=self.metrics, port=settings.port, chain=settings.tls.cert)
        self._installer = Installer(self._sandboxes, settings.packages)
        self._background = BackgroundRuns(self._sandboxes, limits)
        parts = self._parts = Parts(
            runs=Runs(self._sandboxes, limits, self.metrics, self._installer),
            background=self._background,
            activities=Activities(self._sandboxes),
            sandboxes=self._sandboxes,
            files=files,
            links=LinkMaker(files, self._links, expires=settings.links.expires, address=self._address),
            installer=self._installer,
            metrics=self.metrics,
        )
        guards = create_guards(parts, self._audit, max_calls=limits.max_requests_per_owner, toolsets=settings.toolsets)
        keys = KeyManager(self._key_source, settings.auth.change_keys, self._keys.entries, self._use_keys)
        self._rest_tools = create_rest_tools(parts, guards, settings, manager=keys, log=self._audit, backend=backend)
        self.mcp = create_mcp(
            parts,
            guards=guards,
            version=version,
            auth=self._auth,
            compat=settings.compat,
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

        Raises SandpodError: backend_unavailable. StartError: what holds the API keys can't be read, or no audit log
        can be written.
        """
        async with self._audit.running(), self._services():
            yield

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[None]:
        self._installer.open()
        await self._backend.start()
        await self._attempt(self._links.refresh, "link_keys")
        await self._accounting.open()
        repeat, sandboxes = partial(every, failures=self.metrics.background_failures), self._sandboxes
        work = [
            repeat(SWEEP_SECONDS, sandboxes.sweep, task="connections"),
            repeat(SWEEP_SECONDS, sandboxes.secrets.reread, task="secrets"),
            repeat(POLL_SECONDS, self._links.refresh, task="link_keys"),
            *(repeat(seconds, work, task="usage") for seconds, work in self._accounting.work()),
        ]
        if is_proxied(self._auth):
            await self._attempt(refresh := partial(self._auth.refresh, self._sign_in_keys), "sign_in_key")
            work.append(repeat(POLL_SECONDS, refresh, task="sign_in_key"))
        if self._settings.peers.name is not None:
            await self._attempt(self._peers.refresh, "peers")
            work.append(repeat(PEER_SECONDS, self._peers.refresh, task="peers"))
        if self._key_source is not None:
            self._use_keys(await self._key_source.read())
            work.append(repeat(RETRY_SECONDS, partial(self._key_source.follow, self._use_keys), task="api_keys"))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._installer.close()
                await self._accounting.close()
                await self._sandboxes.close()
                await self._backend.close()

    async def finish(self, seconds: float) -> bool:
        """Wait so many seconds for installations that no call waits for, and return whether all have ended."""
        return await self._installer.finish(seconds)

    def _use_keys(self, keys: KeyFile) -> None:
        self._keys.use(keys)
        if self._audit.on and (facts := self._key_changes.facts(keys)):
            self._audit.event("keys", **facts)

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
                    slowed = Middleware(Attempts, metrics=self.metrics)
                    app = Starlette(routes=self._file_routes.routes(), middleware=[slowed])
                    self._loopback = await stack.enter_async_context(serving_on_loopback(app))
                except OSError as error:
                    logger.warning("there are no links, since no port can be had: %s", error)
            yield

    async def _attempt(self, read: Callable[[], Awaitable[None]], task: str) -> None:
        try:
            await read()
        except SandpodError as error:
            # The rest of the server works without links or sign-in, and the next refresh may succeed.
            logger.error("not available yet: %s: %s %s", task, error.message, error.next_step)  # noqa: TRY400
            self.metrics.background_failures.labels(task).inc()

    def http_app(self) -> Starlette:
        """Return the ASGI app: MCP; health and linked files, which need no key; on loopback, metrics."""
        settings, limits = self._settings, self._settings.limits
        if (hosts := settings.allowed_hosts) is None:
            hosts = ["*"] if self._has_callers else []  # besides loopback
        own = settings.links.public_url  # its scheme is another one behind a proxy that ends TLS
        origins = [*settings.allowed_origins, *([own] if own else [])] or None
        requests = Requests(per_owner=limits.max_requests_per_owner, metrics=self.metrics)
        refusals = RefusedRequests(self._audit)
        transports = Transports(
            self.mcp,
            hosts=hosts,
            origins=origins,
            sessions=OpenSessions(
                per_owner=limits.max_sessions_per_owner, in_all=limits.max_sessions, metrics=self.metrics
            ),
            requests=requests,
            allow_query_key=settings.auth.allow_query_key,
            refusals=refusals,
            peers=self._peers,
            ending=self.ending,
        )
        sign_in, sessions = self._sign_in_routes(), Sessions(self._links, settings.links.public_url)
        faces = Faces(
            settings=settings,
            servers=(self.mcp, self._rest_tools),
            parts=self._parts,
            backend=self._backend,
            audit=self._audit,
            links=self._links,
            file_routes=self._file_routes,
            peers=self._peers,
            requests=requests,
            refusals=refusals,
            caller_of_key=self._keys.caller_of_key if self._has_callers else {LOCAL_KEY_ID: LOCAL}.get,
            keys_of_owner=self._keys.of_owner if self._has_callers else _only_local,
            sessions=sessions,
            hosts=hosts,
            origins=origins,
            version=self._version,
            ending=self.ending,
        )
        # Where others reach this port, metrics are for the operators of the server.
        is_own = not self._has_callers and not settings.auth.allow_anonymous
        registry = self.metrics.registry if is_own and settings.metrics_port is None else None
        guarded = hosts if is_own else None
        app = Starlette(
            routes=[
                *health_routes(self._backend.check, registry, hosts=guarded),
                *self._file_routes.routes(hosts=guarded),
                *sign_in,
                *faces.routes(sign_in),
                Mount("/", transports),
            ],
            middleware=around(settings, self._peers, self.metrics, sessions),
            lifespan=transports.lifespan,
        )
        app.state.fastmcp_server = self.mcp  # whose name FastMCP's pages show
        return app

    def _sign_in_routes(self) -> Sequence[BaseRoute]:
        if is_proxied(self._auth):
            return in_both_spellings(sign_in_routes(self._auth, self.metrics, self._audit))
        return in_both_spellings(self._auth.get_well_known_routes(RESOURCE_PATH)) if self._auth is not None else []

    def metrics_app(self) -> Starlette:
        """Return the ASGI app for the port of metrics."""
        return Starlette(routes=[metrics_route(self.metrics.registry)])


def _only_local(owner: str) -> list[tuple[Caller, int | None]]:
    return [(LOCAL, None)] if owner == LOCAL.owner else []
