"""`sandpod doctor`: what this machine can isolate, if the server is installed, and what a server says of itself.

What a server isolates with is what it says; `sandpod verify` tries it.
"""

import argparse
import platform
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sandpod.api import Api
from sandpod.cli.arguments import api, is_at_a_server
from sandpod.cli.output import print_json, print_table
from sandpod.errors import SandpodError
from sandpod.local_server import is_installed
from sandpod.running_server import is_loopback
from sandpod.transport import finish

if TYPE_CHECKING:
    from collections.abc import Callable

Finding = tuple[str, bool | None, str]
"""A thing that was looked at, whether it is in order (None: it is not there), and what was found."""

_MOST: Final = 1000  # templates, of which a server has at most 100
_PROBED: Final = {"NetworkIsolated", "KernelIsolated"}
_BACKENDS: Final = {
    "kubernetes": ("Sandboxes are pods of a cluster.", "--backend kubernetes"),
    "local": (
        "Sandboxes are processes of the server's machine, with namespaces and a filter of system calls.",
        "--backend local",
    ),
}
"""What sandboxes are, by the kind of backend, and how `sandpod verify` is told to try them."""


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    doctor = commands.add_parser(
        "doctor", help="say what works here, and what a server says of itself", parents=[options]
    )
    doctor.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Look at everything; return 1 if something is wrong."""
    findings: list[Finding] = [("client", True, f"{version('sandpod-client')}, Python {platform.python_version()}")]
    for entry in entry_points(group="sandpod.checks"):
        check: Callable[[], list[Finding]] = entry.load()
        findings += check()
    if not is_installed():
        findings.append(("local server", None, "It is not installed: pip install sandpod."))
    if is_at_a_server(arguments):
        server = api(arguments)
        try:
            findings += _server(server)
        finally:
            finish(server.close())
    else:
        findings.append(("server", None, "None is chosen or runs here: SANDPOD_URL or `sandpod login` choose one."))
    if arguments.json:
        print_json([{"what": what, "ok": is_right, "found": found} for what, is_right, found in findings])
    else:
        marks = {True: "ok", False: "WRONG", None: "-"}
        print_table(("STATE", "WHAT", "FOUND"), [(marks[is_right], what, found) for what, is_right, found in findings])
    return 1 if any(is_right is False for _, is_right, _ in findings) else 0


def _key(server: Api) -> Finding:
    """Return what a call that was taken says of keys."""
    if "Authorization" in server.headers:
        return "key", True, "It is taken."
    if is_loopback(server.url):
        return "key", True, "None is needed."
    whose = "whoever reaches this server is the same user of it, with all sandboxes and files, and an administrator"
    return "key", None, f"None is needed: {whose}."


def _server(server: Api) -> list[Finding]:
    """Ask a server for its description, for something that needs a key, and what it isolates with."""
    found: list[Finding] = []
    try:
        about = finish(server.call("GET", "/openapi.json"))
        found.append(("server", True, f"{server.url}, version {about['info']['version']}"))
        sandboxes = finish(server.pages("/sandboxes", "sandboxes"))
        found.append(_key(server))
    except SandpodError as error:
        return [*found, ("key" if found else "server", False, str(error))]
    ready = [each["sandbox"] for each in sandboxes if each["status"] == "Ready"]
    return [*found, *_isolation(server), *(_observed(server, ready[-1]) if ready else [])]


def _isolation(server: Api) -> list[Finding]:
    """Return what a server says of its sandboxes, and where to try it."""
    try:
        told = finish(server.call("GET", "/templates", query={"limit": _MOST}))
    except SandpodError as error:  # an older server, or a key that may not ask
        return [("isolation there", None, f"The server does not say: {error}")]
    backend = str(told["backend"])
    boundary, verify = _BACKENDS.get(backend, (f"Its sandboxes are of the kind {backend}.", f"--backend {backend}"))
    found: list[Finding] = [("isolation there", True, boundary)]
    for each in told["templates"]:
        kernel = f"a kernel of its own (RuntimeClass {each['runtime_class']})" if each["runtime_class"] else None
        networks = ", ".join(each["networks"])
        text = f"{kernel or 'the kernel is shared'}; network profiles: {networks}"
        found.append((f"template {each['template']}", True, text))
    step = f"`sandpod verify {verify}`, by who keeps the server, tries what it says."
    return [*found, ("proof", None, step)]


def _observed(server: Api, sandbox: str) -> list[Finding]:
    """Return what was probed from inside a sandbox of the caller's, where that is known."""
    try:
        state = finish(server.call("GET", f"/sandboxes/{quote(sandbox, safe='')}/state"))
    except SandpodError:  # it has ended meanwhile, or a key that may not ask
        return []
    return [
        (f"{each['type']} in {sandbox}", {"True": True, "False": False}.get(each["status"]), _words(each))
        for each in state["conditions"]
        if each["type"] in _PROBED
    ]


def _words(condition: dict[str, str]) -> str:
    return f"{condition['reason']}: {condition['message']}" if condition.get("message") else condition["reason"]
