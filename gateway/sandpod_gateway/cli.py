"""The command `sandpod`: serve over HTTP, serve over stdio, install libraries, make keys.

The outermost layer: reads settings, configures logging, and turns an error at start into one sentence and exit code 2.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, get_args

import uvicorn
import yaml
from pydantic import ValidationError

from sandpod_api import log_lines
from sandpod_gateway import cli_setup, temporary
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import ToolsetName
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile, make_key, read_keys
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_gateway.http import connections
from sandpod_gateway.mcp import stdio
from sandpod_gateway.packages.process import shield_memory
from sandpod_gateway.settings import Settings, load

EXIT_REFUSED: Final = 2
SHUTDOWN_SECONDS: Final = 10  # for answers in progress when the server is asked to stop
METRICS_CONNECTIONS: Final = 64  # a few Prometheus servers
KEEP_ALIVE_SECONDS: Final = 75  # longer than proxies keep an idle connection, so that they close it first
MAX_KEY_DAYS: Final = 36_500

_NOT_ISOLATED: Final = """\
  Not isolated here: code shares your machine's kernel, its memory is watched rather than limited by the kernel, and
  its processor time is not limited. For other people's code use the Kubernetes backend.
"""
_UNSAFE: Final = """\
  WARNING: --unsafe-no-isolation is on. Code that runs here can do whatever you can: read your files, use your network.
"""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="sandpod", description="A safe, fast place for AI agents to run code.")
    parser.add_argument("--version", action="version", version=importlib.metadata.version("sandpod"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("serve", "serve MCP over HTTP"),
        ("stdio", "serve MCP over standard input and output"),
        ("setup", "install the libraries that local sandboxes have"),
    ):
        command = commands.add_parser(name, help=text, add_help=False)
        command.add_argument("--config", type=Path, help="settings file (YAML)")
    _add_keys_parser(commands)
    arguments, rest = parser.parse_known_args()
    if arguments.command == "keys" and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    sys.exit(_run(arguments, rest))


def _run(arguments: argparse.Namespace, flags: list[str]) -> int:
    """Run a command; a refusal becomes one line on standard error."""
    try:
        if arguments.command == "keys":
            _create_key(arguments)
        else:
            _serve(arguments.command, arguments.config, flags)
    except SandpodError as error:
        cause = f" ({error.cause.rstrip('.')})" if error.cause else ""
        sys.stderr.write(f"sandpod: {error.message.rstrip('.')}{cause}. {error.next_step}\n")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(command: str, config: Path | None, flags: list[str]) -> None:
    settings = load(flags, config=config, program=f"sandpod {command}")
    _configure_logs(settings)
    if command == "setup":
        cli_setup.run(settings)
        return
    shield_memory()
    backend = create_backend(settings.backend, local=settings.local, kubernetes=settings.kubernetes)
    gateway = Gateway(settings, backend)
    with temporary.own_folder():
        asyncio.run(_serve_stdio(gateway) if command == "stdio" else _serve_http(gateway, settings))


def _configure_logs(settings: Settings) -> None:
    """Send all logs to standard error: standard output belongs to the protocol in stdio mode."""
    log_lines.configure(settings.log_format, settings.log_level)
    # FastMCP brings a handler of its own, with colours and boxes.
    library = logging.getLogger("fastmcp")
    library.handlers.clear()
    library.propagate = True
    # These log each request or frame at info level.
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    for noisy in ("uvicorn.access", "httpx", "mcp", "fastmcp", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


async def _serve_stdio(gateway: Gateway) -> None:
    async with gateway.running(), gateway.links_on_loopback():
        await stdio.serve(gateway.mcp)


async def _serve_http(gateway: Gateway, settings: Settings) -> None:
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(settings.host, settings.port, flag="--port"))
        port = settings.metrics_port
        metrics = None if port is None else stack.enter_context(_listen(settings.host, port, flag="--metrics-port"))
        await stack.enter_async_context(gateway.running())
        if metrics is not None:
            app = gateway.metrics_app()
            await stack.enter_async_context(connections.serving(app, metrics, most=METRICS_CONNECTIONS))
        server = _uvicorn(gateway, settings)
        server.banner = _banner(settings.model_copy(update={"port": listener.getsockname()[1]}))
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


class _Server(uvicorn.Server):
    banner = ""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal, and do not raise it again afterwards, which would cut off what is closed after this."""
        with super().capture_signals():
            sys.stderr.write(self.banner)  # not before: whoever reads it may end the server at once
            yield
            self._captured_signals.clear()


def _uvicorn(gateway: Gateway, settings: Settings) -> _Server:
    return _Server(
        connections.config(
            gateway.http_app(),
            most=connections.most_connections(),
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            ssl_certfile=settings.tls.cert,
            ssl_keyfile=settings.tls.key,
        )
    )


def _banner(settings: Settings) -> str:
    """Return the address, how to try it, and what is not protected; the settings have the port that is in use."""
    lines = [f"Sandpod is ready: {settings.url}\n"]
    if settings.auth.keys_file is None:
        lines.append(f"  Try it: {_program('fastmcp')} call {settings.url} run_python_code code='print(\"hello\")'\n")
        lines.append("  No key is needed: every program on this machine can connect, and nothing else.\n")
    else:
        lines.append("  Callers need an API key, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`.\n")
    if settings.backend == "local":
        lines.append(_UNSAFE if settings.local.unsafe_no_isolation else _NOT_ISOLATED)
    return "".join(lines)


def _program(name: str) -> str:
    """Return the command that starts a program of this environment, which need not be on the PATH."""
    own = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(own) or not os.access(own, os.X_OK):
        return name
    return shlex.quote(str(own))


def _add_keys_parser(commands: Any) -> None:
    keys = commands.add_parser("keys", help="create API keys").add_subparsers(
        dest="keys_command", required=True, metavar="COMMAND"
    )
    create = keys.add_parser("create", help="create a key; it is shown once, and only its hash is stored")
    create.add_argument("--user", required=True, help="who the key is for; sandboxes belong to users")
    create.add_argument("--name", default="default", help="what it is for")
    create.add_argument("--days", type=int, help="days until it expires; default: never")
    create.add_argument("--tools", help="toolsets that it may use, such as core,files; default: all")
    create.add_argument("--file", type=Path, help="key file to add it to; default: print the entry")
    create.add_argument("--output", choices=("text", "json"), default="text", help="output format")


def _create_key(arguments: argparse.Namespace) -> None:
    """Create an API key, and print it with the entry by which a server recognizes it."""
    user, name, days = arguments.user, arguments.name, arguments.days
    if days is not None and not 1 <= days <= MAX_KEY_DAYS:
        raise StartError(ErrorCode.INVALID_ARGUMENT, f"--days is 1 to {MAX_KEY_DAYS}.", next_step="Correct it.")
    tools = None if arguments.tools is None else [tool.strip() for tool in arguments.tools.split(",")]
    known = get_args(ToolsetName)
    if tools is not None and not set(tools) <= set(known):
        message, step = "--tools has a name that is not a toolset.", f"Toolsets are: {', '.join(known)}."
        raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    try:
        key, entry = make_key(user=user, name=name, days=days, now=datetime.now(UTC), tools=tools)
    except ValidationError as error:
        message = "User and name have 1 to 128 characters."
        raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step="Correct them.") from error
    if arguments.file is not None:
        _add_key(arguments.file, entry)
    plain = entry.model_dump(mode="json", exclude_none=True)
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"key": key, "entry": plain}) + "\n")
        return
    where = f"added to {arguments.file}" if arguments.file is not None else "to put under `keys:` of the key file"
    listing = yaml.safe_dump([plain], sort_keys=False)
    sys.stdout.write(f"key (shown only now): {key}\nentry, {where}:\n{listing}")


def _add_key(path: Path, entry: KeyEntry) -> None:
    """Add an entry to the key file, which is replaced as a whole, and readable by its owner only."""
    keys = read_keys(path).keys if path.exists() else []
    content = KeyFile(keys=[*keys, entry]).model_dump(mode="json", exclude_none=True)
    try:
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            yaml.safe_dump(content, out, sort_keys=False)
        Path(new).replace(path)
    except OSError as error:
        message = f"The key file {path} can't be written: {error.strerror}."
        raise StartError(ErrorCode.BACKEND_ERROR, message, next_step="Choose another place with --file.") from error
