"""`kubectl sandpod`: the few things about sandboxes that take more than one kubectl command. Calls kubectl alone.

kubectl finds it as `kubectl-sandpod` on the PATH. It has the rights of who calls it and no others: `run` needs
pods/exec, `extend` may patch Sandboxes.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.conditions import ConditionType, find
from sandpod_api.fields import MAX_LIFETIME
from sandpod_api.types import Sandbox, exec_command

_REFUSED: Final = 2
_SANDBOXES: Final = f"{names.SANDBOXES}.{names.GROUP}"
_LOOK: Final = "2s"  # between two checks whether a sandbox has failed
_LIFETIME: Final = 3600  # seconds, of a sandbox that `run` has created
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])", re.ASCII)


class PluginError(Exception):
    """What is asked for can't be had; one sentence with the next step."""


def main() -> None:
    """Run one command, and end with its exit code."""
    arguments = _parser().parse_args()
    kubectl = _Kubectl(arguments)
    try:
        sys.exit({"run": _run, "logs": _logs, "extend": _extend}[arguments.command](kubectl, arguments))
    except PluginError as error:
        sys.stderr.write(f"kubectl sandpod: {error}\n")
        sys.exit(_REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)


def seconds_of(text: str) -> int:
    """Return the seconds of a duration such as 90s, 30m, 2h or 1d. Raises argparse.ArgumentTypeError: it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; use 90s, 30m, 2h or 1d")
    return int(found[1]) * _UNITS[found[2]]


def longer_ttl(sandbox: Sandbox, seconds: int, now: datetime) -> int:
    """Return the ttl with which a sandbox lives for that many seconds from now on, or longer as it does.

    Raises PluginError: nobody holds it, or it would live for longer than any may.
    """
    if sandbox.spec.claim is None:
        raise PluginError("It is not claimed: a sandbox that waits in a pool has no end to extend.")
    ttl = max(sandbox.spec.lifetime.ttl, int((now - sandbox.spec.claim.time).total_seconds()) + seconds)
    if ttl > MAX_LIFETIME:
        raise PluginError(f"It would live for longer than {MAX_LIFETIME} seconds: choose a shorter time.")
    return ttl


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    for flag in ("--namespace", "--context", "--kubeconfig"):
        common.add_argument(*(("-n",) if flag == "--namespace" else ()), flag, help="as in kubectl")
    parser = argparse.ArgumentParser(prog="kubectl sandpod", description="Works with Sandpod's sandboxes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", parents=[common], help="run a program in a sandbox, as its limits allow")
    where = run.add_mutually_exclusive_group(required=True)
    where.add_argument("sandbox", nargs="?", help="an existing sandbox")
    where.add_argument("-t", "--template", help="create one from this template, and delete it afterwards")
    run.add_argument("-l", "--language", default="python", help="python, javascript, shell, or one of the template's")
    run.add_argument("--timeout", type=seconds_of, default=120, help="longest wait for a new sandbox; default: 2m")
    code = run.add_mutually_exclusive_group()
    code.add_argument("-c", "--code", help="the program")
    code.add_argument("-f", "--file", type=Path, help="a file with it; without either, it is read from standard input")
    run.add_argument("-a", "--arg", action="append", default=[], help="an argument of the program; may be repeated")

    logs = commands.add_parser("logs", parents=[common], help="print the log of a sandbox's runner")
    logs.add_argument("sandbox")
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log until it ends")

    extend = commands.add_parser("extend", parents=[common], help="extend the life of a sandbox that stays in use")
    extend.add_argument("sandbox")
    extend.add_argument("duration", type=seconds_of, help="from now on: 90s, 30m, 2h or 1d")
    return parser


class _Kubectl:
    def __init__(self, arguments: argparse.Namespace) -> None:
        given = {name: getattr(arguments, name) for name in ("namespace", "context", "kubeconfig")}
        self._command = ["kubectl", *(f"--{name}={value}" for name, value in given.items() if value is not None)]

    def pass_through(self, *arguments: str, code: bytes | None = None) -> int:
        """Run a command that has this process's own streams; `code` is its input."""
        return subprocess.run([*self._command, *arguments], input=code, check=False).returncode

    def ask(self, *arguments: str, manifest: dict[str, Any] | None = None) -> str:
        """Return what a command prints; raises kubectl's own words where it fails."""
        stdin, command = None if manifest is None else json.dumps(manifest), [*self._command, *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise PluginError("kubectl is not installed.") from error
        if done.returncode != 0:
            raise PluginError(done.stderr.strip() or f"kubectl {arguments[0]} failed.")
        return done.stdout

    def sandbox(self, name: str) -> Sandbox:
        """Return a sandbox."""
        try:
            return Sandbox.model_validate_json(self.ask("get", _SANDBOXES, name, "-o", "json"))
        except ValidationError as error:
            text = "This Sandbox belongs to another version of Sandpod: install that version's plugin."
            raise PluginError(text) from error


def _run(kubectl: _Kubectl, arguments: argparse.Namespace) -> int:
    code = _code(arguments)
    with nullcontext(arguments.sandbox) if arguments.sandbox is not None else _made(kubectl, arguments) as name:
        sandbox = kubectl.sandbox(name)
        if sandbox.spec.claim is None:
            raise PluginError("It is waiting in a pool and must stay clean for its next owner: use --template.")
        runner = [*exec_command(sandbox), "run", arguments.language, *arguments.arg]
        return kubectl.pass_through("exec", "-i", _pod(sandbox), "-c", names.CONTAINER, "--", *runner, code=code)


def _code(arguments: argparse.Namespace) -> bytes:
    if arguments.code is not None:
        return str(arguments.code).encode()
    try:
        return arguments.file.read_bytes() if arguments.file is not None else sys.stdin.buffer.read()
    except OSError as error:
        raise PluginError(f"{arguments.file} can't be read: {error.strerror}.") from error


@contextmanager
def _made(kubectl: _Kubectl, arguments: argparse.Namespace) -> Iterator[str]:
    """Make a sandbox of the caller's own, wait until it is ready, and delete it at the end."""
    claim = {"owner": "kubectl", "time": rfc3339(datetime.now(UTC))}
    template = {"name": arguments.template}
    spec = {"templateRef": template, "claim": claim, "lifetime": {"ttl": _LIFETIME, "idleTimeout": _LIFETIME}}
    metadata = {"generateName": "kubectl-"}
    manifest = {"apiVersion": names.API_VERSION, "kind": "Sandbox", "metadata": metadata, "spec": spec}
    found = kubectl.ask("create", "-f", "-", "-o", "jsonpath={.metadata.name}", manifest=manifest)
    try:
        _await(kubectl, found, arguments.timeout)
        yield found
    finally:
        kubectl.ask("delete", _SANDBOXES, found, "--wait=false")


def _await(kubectl: _Kubectl, name: str, seconds: int) -> None:
    """Return when a sandbox is ready; raises what its condition says if it has failed or takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            kubectl.ask("wait", f"{_SANDBOXES}/{name}", "--for=condition=Ready", f"--timeout={_LOOK}")
        except PluginError as error:
            status = kubectl.sandbox(name).status
            if status.phase == "Failed" or time.monotonic() > deadline:
                ready = find(status.conditions, ConditionType.READY)
                raise PluginError(f"It is not ready. {ready.message if ready is not None else error}") from error
        else:
            return


def _logs(kubectl: _Kubectl, arguments: argparse.Namespace) -> int:
    follow = ["--follow"] if arguments.follow else []
    return kubectl.pass_through("logs", _pod(kubectl.sandbox(arguments.sandbox)), "-c", names.CONTAINER, *follow)


def _pod(sandbox: Sandbox) -> str:
    if sandbox.status.pod_name is None:
        raise PluginError(f"{sandbox.metadata.name} has no pod: it is {sandbox.status.phase or 'new'}.")
    return sandbox.status.pod_name


def _extend(kubectl: _Kubectl, arguments: argparse.Namespace) -> int:
    sandbox = kubectl.sandbox(arguments.sandbox)
    ttl = longer_ttl(sandbox, arguments.duration, datetime.now(UTC))
    change = json.dumps({"spec": {"lifetime": {"ttl": ttl}}})
    kubectl.ask("patch", _SANDBOXES, arguments.sandbox, "--type=merge", "-p", change)
    if sandbox.spec.claim is not None:
        end = sandbox.spec.claim.time + timedelta(seconds=ttl)
        sys.stdout.write(f"{arguments.sandbox} may live until {rfc3339(end)}; without use it ends earlier\n")
    return 0
