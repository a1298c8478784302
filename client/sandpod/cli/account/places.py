"""Whether a command is for a server, or for the server's own program, on files and clusters."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sandpod.api import Api
from sandpod.cli.arguments import api, is_at_a_server
from sandpod.errors import UnreachableError
from sandpod.transport import finish

OUTPUT: Final = ("text", "json")


def add_output(parser: argparse.ArgumentParser, choices: tuple[str, ...] = OUTPUT) -> None:
    """Add --output, which the server's program has."""
    parser.add_argument("--output", choices=choices, default="text", help="output format; --json is the same as json")


def is_json(arguments: argparse.Namespace) -> bool:
    """Whether JSON is to be printed."""
    return bool(arguments.json or arguments.output == "json")


def names_a_place(arguments: argparse.Namespace, *places: str) -> bool:
    """Whether one of these arguments, which name files and places in clusters, was given."""
    return any(getattr(arguments, place, None) is not None for place in places)


@contextmanager
def server_api(arguments: argparse.Namespace, elsewhere: str) -> Iterator[Api]:
    """Give the server that is meant. Raises SandpodError: none is; `elsewhere` says what there is without one."""
    if not is_at_a_server(arguments):
        step = f"Name one by --url, or sign in with `sandpod login`. Who keeps the server has {elsewhere}."
        raise UnreachableError("unreachable", "No server is chosen, and none runs here.", step)
    server = api(arguments)
    try:
        yield server
    finally:
        finish(server.close())


def pages(server: Api, path: str, query: dict[str, Any], use: Callable[[dict[str, Any]], object]) -> None:
    """Pass each page of a list to `use`, which returns False for no more."""
    cursor: str | None = None
    while True:
        page = finish(server.call("GET", path, query={**query, "cursor": cursor}))
        cursor = page.get("next")
        if use(page) is False or cursor is None:
            return
