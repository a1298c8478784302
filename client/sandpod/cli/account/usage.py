"""`sandpod usage`: shows what callers used at a server."""

import argparse
import re
from typing import Any, Final

from sandpod.api import Api
from sandpod.cli.account.places import add_output, is_json, names_a_place, pages, server_api
from sandpod.cli.output import print_json, print_lines, print_table
from sandpod.cli.server_program import run_server_program
from sandpod.transport import finish

_ELSEWHERE: Final = "--directory and --configmaps"
_LIMIT: Final = 1000  # rows of a page, the most that a server gives
_FILTERS: Final = ("by", "since", "user", "tenant", "key")
_CURSOR: Final = re.compile(r"[?&]cursor=([\w-]+)")  # in the header Link, where CSV has no other place for it


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    usage = commands.add_parser(
        "usage",
        help="show what was used: processor, memory and sandbox time, bytes, runs",
        parents=[options],
        epilog="With --directory or --configmaps it is for who keeps the server, which has to be installed here.",
    )
    usage.add_argument("--by", choices=("key", "user", "tenant", "sandbox"), default="user", help="a row for each")
    usage.add_argument("--since", help="first day, as 2026-11-30 (UTC); default: all days that are kept")
    for name in ("user", "tenant", "key"):
        usage.add_argument(f"--{name}", help=f"only of this {name}")
    where = usage.add_mutually_exclusive_group()
    where.add_argument("--directory", help="folder that the setting usage.directory names, without a server")
    where.add_argument("--configmaps", help="what kubernetes.usage names in a cluster, NAMESPACE/NAME")
    add_output(usage, ("text", "csv", "json"))
    usage.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    if names_a_place(arguments, "directory", "configmaps"):
        return run_server_program("usage", "usage --directory")
    query = {name: getattr(arguments, name) for name in _FILTERS} | {"limit": _LIMIT}
    with server_api(arguments, _ELSEWHERE) as server:
        if arguments.output == "csv" and not arguments.json:
            finish(_print_csv(server, query))
            return 0
        columns: list[str] = []
        rows: list[dict[str, Any]] = []

        def use(page: dict[str, Any]) -> None:
            columns[:] = page["columns"]
            rows.extend(page["rows"])

        pages(server, "/usage", query, use)
    if is_json(arguments):
        print_json(rows)
    else:
        print_table(
            [name.upper() for name in columns], [[row.get(name) for name in columns] for row in rows], numbers=True
        )
    return 0


async def _print_csv(server: Api, query: dict[str, Any]) -> None:
    """Print the server's CSV, in which it has seen to it that no spreadsheet finds a formula; the titles once."""
    cursor: str | None = None
    is_first = True
    while True:
        asked = {**query, "format": "csv", "cursor": cursor}
        async with server.stream("GET", "/usage", query=asked) as answer:
            text = b"".join([piece async for piece in answer.pieces()]).decode()
            found = _CURSOR.search(answer.response.headers.get("link", ""))
        print_lines(text if is_first else text.partition("\n")[2])
        cursor, is_first = found[1] if found else None, False
        if cursor is None:
            return
