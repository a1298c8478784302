"""`sandpod verify`: tries every promise about isolation, on a cluster or on this machine, and says which hold."""

import argparse
import asyncio
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.cli.arguments import ANONYMOUS, kubernetes_client
from sandpod_gateway.errors import StartError
from sandpod_gateway.verify.model import KINDS, Evidence
from sandpod_gateway.verify.report import html, machine, text
from sandpod_gateway.verify.run import Report
from sandpod_gateway.verify.run import run as verify

_SECONDS: Final = 900.0


def add_parser(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser("verify", help="try every promise about isolation, on a cluster or on this machine")
    parser.add_argument("--backend", choices=KINDS, default="local", help="which sandboxes to try; default: local")
    parser.add_argument("--config", type=Path, help="settings file of the server (YAML)")
    parser.add_argument("--kubeconfig", type=Path, help="as in kubectl")
    parser.add_argument("--context", help="context of the kubeconfig; default: the current one")
    parser.add_argument("--namespace", default="sandpod", help="namespace of the release; default: sandpod")
    parser.add_argument("--template", help="template of the sandboxes that are made; default: the release's")
    parser.add_argument("--timeout", type=float, default=_SECONDS, help=f"longest time, seconds; default: {_SECONDS:g}")
    for form in ("json", "sarif", "html"):
        parser.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write the report as {form.upper()} too")


def run(arguments: argparse.Namespace) -> int:
    """Try it, print and write the report; return the exit code. Raises SandpodError: nothing could be tried."""
    logging.basicConfig(level=logging.ERROR, format="sandpod: %(message)s")
    if arguments.backend == "local":
        target, collecting = _local(arguments)
    else:
        target, collecting = _cluster(arguments)
    report = asyncio.run(_interruptible(arguments, target, collecting))
    _write(arguments, report)
    sys.stdout.write(text.render(report))
    return report.exit_code


async def _interruptible(
    arguments: argparse.Namespace, target: str, collecting: Coroutine[Any, Any, Evidence]
) -> Report:
    """Run it, and end as by Ctrl-C when asked to end otherwise: what was made is removed."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await verify(arguments.backend, target, collecting, seconds=arguments.timeout)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _local(arguments: argparse.Namespace) -> tuple[str, Coroutine[Any, Any, Evidence]]:
    from sandpod_gateway.settings import load  # noqa: PLC0415 - takes a second to import
    from sandpod_gateway.verify import local  # noqa: PLC0415 - as above

    settings = load([], config=arguments.config, program="sandpod verify")
    if settings.auth.allow_anonymous:
        sys.stderr.write(f"sandpod: auth.allow_anonymous is set: {ANONYMOUS}.\n")
    return "local sandboxes of this machine", local.collect(settings.local)


def _cluster(arguments: argparse.Namespace) -> tuple[str, Coroutine[Any, Any, Evidence]]:
    with kubernetes_client():
        from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings  # noqa: PLC0415 - an optional extra
        from sandpod_gateway.verify import cluster  # noqa: PLC0415 - as above
    settings = KubernetesSettings(kubeconfig=arguments.kubeconfig, context=arguments.context)
    where = f"context {arguments.context}" if arguments.context else "the current context"
    return f"release in namespace {arguments.namespace} of {where}", cluster.collect(
        settings, arguments.namespace, arguments.template
    )


def _write(arguments: argparse.Namespace, report: Report) -> None:
    forms: tuple[tuple[Path | None, Callable[[Report], str]], ...] = (
        (arguments.json, lambda made: json.dumps(machine.as_json(made), indent=1) + "\n"),
        (arguments.sarif, lambda made: json.dumps(machine.as_sarif(made), indent=1) + "\n"),
        (arguments.html, html.render),
    )
    for path, render in forms:
        if path is None:
            continue
        try:
            path.write_text(render(report), encoding="utf-8")
        except OSError as error:
            message = f"The report can't be written to {path}: {error.strerror}."
            raise StartError(ErrorCode.NOT_FOUND, message, next_step="Name a file in a folder that exists.") from error
