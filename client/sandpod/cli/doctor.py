"""`sandpod doctor`: what this machine can isolate, if the server is installed, and what a server says of itself."""

import argparse
import platform
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

from sandpod import endpoint
from sandpod.api import Api
from sandpod.cli.arguments import api
from sandpod.cli.output import print_json, print_table
from sandpod.errors import SandpodError
from sandpod.local_server import is_installed
from sandpod.running_server import is_loopback
from sandpod.transport import finish

if TYPE_CHECKING:
    from collections.abc import Callable

Finding = tuple[str, bool | None, str]
"""A thing that was looked at, whether it is in order (None: it is not there), and what was found."""


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
    if arguments.url or arguments.local or arguments.profile or endpoint.is_chosen():
        findings += _server(api(arguments))
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
    """Ask a server for its description, and for something that needs a key."""
    found: list[Finding] = []
    try:
        about = finish(server.call("GET", "/openapi.json"))
        found.append(("server", True, f"{server.url}, version {about['info']['version']}"))
        finish(server.call("GET", "/sandboxes", query={"limit": 1}))
        found.append(_key(server))
    except SandpodError as error:
        found.append(("key" if found else "server", False, str(error)))
    finally:
        finish(server.close())
    return found
