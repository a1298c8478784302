"""`sandpod serve` and `sandpod stdio`: listens, says where, and serves until it is told to stop."""

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sse_starlette.sse import AppStatus

from sandpod_api import log_lines
from sandpod_gateway import temporary
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.verifier import RESOURCE_PATH
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.cli.announcement import announced
from sandpod_gateway.cli.arguments import ANONYMOUS
from sandpod_gateway.errors import StartError
from sandpod_gateway.http import connections
from sandpod_gateway.http.certificates import POLL_SECONDS, Certificate
from sandpod_gateway.mcp import stdio
from sandpod_gateway.packages.process import shield_memory
from sandpod_gateway.periodic import every
from sandpod_gateway.settings import Settings, TraceSettings
from sandpod_telemetry import log_context, tracing

logger = logging.getLogger(__name__)

METRICS_CONNECTIONS: Final = 64  # a few Prometheus servers
KEEP_ALIVE_SECONDS: Final = 75  # longer than proxies keep an idle connection, so that they close it first
_LOOK_EVERY: Final = 0.5  # seconds between two looks for a second signal

_NOT_ISOLATED: Final = """\
  Not isolated here: code shares your machine's kernel, its memory is watched rather than limited by the kernel, and
  its processor time is not limited. For other people's code use the Kubernetes backend.
"""
_UNSAFE: Final = """\
  WARNING: --unsafe-no-isolation is on. Code that runs here can do whatever you can: read your files, use your network.
"""


def run(settings: Settings, *, over_stdio: bool) -> None:
    """Serve until a signal or the client ends it. Raises SandpodError: it can't be served; says why."""
    shield_memory()
    if over_stdio:
        settings.audit.check_stdio()
    backend = create_backend(settings.backend, local=settings.local, kubernetes=settings.kubernetes)
    with _traces(settings.traces):
        _serve(Gateway(settings, backend), settings, over_stdio=over_stdio)


def _serve(gateway: Gateway, settings: Settings, *, over_stdio: bool) -> None:
    with temporary.own_folder():
        asyncio.run(_serve_stdio(gateway) if over_stdio else _serve_http(gateway, settings))


@contextmanager
def _traces(settings: TraceSettings) -> Iterator[None]:
    """Record spans meanwhile, if they are asked for. Raises StartError: that can't be done."""
    try:
        tracing.start(service="sandpod-gateway", endpoint=settings.endpoint, ratio=settings.ratio)
    except tracing.TracesUnavailableError as error:
        step = "Do that, or leave traces.endpoint out."
        raise StartError(ErrorCode.INVALID_ARGUMENT, str(error), next_step=step) from error
    try:
        yield
    finally:
        tracing.stop()


def configure_logs(settings: Settings) -> None:
    """Send all logs to standard error: standard output belongs to the protocol in stdio mode."""
    log_lines.configure(settings.log_format, settings.log_level, log_context.current)
    # FastMCP brings a handler of its own, with colours and boxes.
    library = logging.getLogger("fastmcp")
    library.handlers.clear()
    library.propagate = True
    # These log each request or frame at info level.
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    for noisy in ("uvicorn.access", "httpx2", "mcp", "fastmcp", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


async def _serve_stdio(gateway: Gateway) -> None:
    async with gateway.running(), gateway.links_on_loopback():
        await stdio.serve(gateway.mcp)


async def _serve_http(gateway: Gateway, settings: Settings) -> None:
    AppStatus.enable_automatic_graceful_drain = False  # it ends answers in progress at the signal to end
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(settings.host, settings.port, flag="--port"))
        port = settings.metrics_port
        metrics = None if port is None else stack.enter_context(_listen(settings.host, port, flag="--metrics-port"))
        if settings.auth.allow_anonymous:
            logger.warning("auth.allow_anonymous is set: %s", ANONYMOUS)
        await stack.enter_async_context(gateway.running())
        if metrics is not None:
            app = gateway.metrics_app()
            await stack.enter_async_context(connections.serving(app, metrics, most=METRICS_CONNECTIONS))
        certificate = _certificate(gateway, settings)
        if certificate is not None:
            failures = gateway.metrics.background_failures
            work = every(POLL_SECONDS, certificate.refresh, task="certificate", failures=failures)
            stack.callback(asyncio.create_task(work).cancel)
        server = _uvicorn(gateway, settings, certificate)
        here = settings.model_copy(update={"port": listener.getsockname()[1]})
        server.banner = _banner(here)
        server.announced = stack.enter_context(contextlib.ExitStack())
        server.announced.enter_context(announced(here))
        await server.serve(sockets=[listener])


def _listen(host: str, port: int, *, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Connections inherit it. Without it a short answer waits 40 ms for the client's delayed acknowledgement, and
        # asyncio sets it only where a socket names its protocol, which this one does not.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener  # noqa: TRY300  # either call can fail
    except OSError as error:
        message = f"Can't listen on {host}:{port}: {error.strerror}."
        step = f"Choose another address with --host and {flag}."
        raise StartError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step) from error


class _Server(connections.Server):
    banner = ""
    announced: contextlib.ExitStack | None = None  # closed before the port is
    finish: Callable[[float], Awaitable[bool]] | None = None  # waits so many seconds for other work, if there is any
    drain = 0  # seconds without a call, after it was asked to end, for which it goes on
    _asked: float | None = None  # when that was

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop listening; until then, let every answer close its connection.

        Without it, a client would send its next request over a connection that ends at that moment. A proxy of a busy
        cluster may learn late that this server ends: as long as calls come, it goes on, for half of the time that calls
        in progress have.
        """
        asked = await super().on_tick(counter)
        if not asked or self.force_exit or not self.drain:
            return asked
        now = asyncio.get_running_loop().time()
        if self._asked is None:
            self._asked = now
            self.config.encoded_headers.append((b"connection", b"close"))
            self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        latest, calls = self._asked + self.drain, self.config.timeout_graceful_shutdown or 0
        end = min(max(latest, self.last_call + self.drain), latest + calls // 2)
        if now < end:
            return False
        self.config.timeout_graceful_shutdown = max(1, calls - int(end - latest))
        return True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let calls in progress end, and other work in what is left of their time."""
        if self.announced is not None:
            self.announced.close()
        now = asyncio.get_running_loop().time
        end = now() + (self.config.timeout_graceful_shutdown or 0)
        await super().shutdown(sockets)
        while self.finish is not None and not self.force_exit and (left := end - now()) > 0:
            if await self.finish(min(_LOOK_EVERY, left)):
                break

    @property
    def last_call(self) -> float:
        """When a call came last, on the loop's clock."""
        http = self.config.http_protocol_class
        return http.last_call if issubclass(http, connections.BoundedConnection) else 0.0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal, and do not raise it again afterwards, which would cut off what is closed after this."""
        with super().capture_signals():
            sys.stderr.write(self.banner)  # not before: whoever reads it may end the server at once
            yield
            self._captured_signals.clear()


def _certificate(gateway: Gateway, settings: Settings) -> Certificate | None:
    chain, key = settings.tls.cert, settings.tls.key
    return None if chain is None or key is None else Certificate(chain, key, gateway.metrics)


def _uvicorn(gateway: Gateway, settings: Settings, certificate: Certificate | None) -> _Server:
    server = _Server(
        connections.config(
            gateway.http_app(),
            most=connections.most_connections(),
            linger=settings.shutdown.drain,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=settings.shutdown.calls,
            **connections.WEBSOCKETS,
            ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
        )
    )
    server.drain, server.ending = settings.shutdown.drain, gateway.ending
    if settings.backend != "local":  # whose sandboxes end with the server
        server.finish = gateway.finish
    return server


def _banner(settings: Settings) -> str:
    """Return the address, how to try it, and what is not protected; the settings have the port that is in use."""
    lines = [f"Sandpod is ready: {settings.url}\n"]
    if settings.console.enabled:
        lines.append(f"  In a browser: {settings.url.removesuffix(RESOURCE_PATH)}/\n")
    if not settings.has_keys:
        lines.append(f"  Try it: {_program('fastmcp')} call {settings.url} run_python_code code='print(\"hello\")'\n")
        who = "every program on this machine can connect, and nothing else"
        lines.append(f"  No key is needed: {ANONYMOUS if settings.auth.allow_anonymous else who}.\n")
    else:
        oidc = settings.auth.oidc
        users = f"  Callers sign in at {oidc.issuer}, or send" if oidc is not None else "  Callers need"
        lines.append(f"{users} an API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`.\n")
    if settings.backend == "local":
        lines.append(_UNSAFE if settings.local.unsafe_no_isolation else _NOT_ISOLATED)
    return "".join(lines)


def _program(name: str) -> str:
    """Return the command that starts a program of this environment, which need not be on the PATH."""
    own = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(own) or not os.access(own, os.X_OK):
        return name
    return shlex.quote(str(own))
