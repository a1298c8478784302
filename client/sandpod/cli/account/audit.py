"""`sandpod audit`: shows a server's audit records; `audit verify` is the server's own, on files."""

import argparse
from typing import Any, Final

from sandpod.cli.account.places import add_output, pages, server_api
from sandpod.cli.output import print_json, print_table, say
from sandpod.cli.server_program import run_server_program

_ELSEWHERE: Final = "`sandpod audit verify`"
_LIMIT: Final = 100
_PAGE: Final = 1000  # records of a page, the most that a server gives
_TITLES: Final = ("TIME", "USER", "EVENT", "WHAT", "SANDBOX", "OUTCOME")


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    audit = commands.add_parser(
        "audit",
        help="show what was done at a server, newest first",
        parents=[options],
        epilog="`audit verify` is for who keeps the server, which has to be installed here.",
    )
    audit.add_argument("--user", help="only what this user did")
    audit.add_argument("--event", help="only events of this kind, such as call")
    audit.add_argument("--limit", type=int, default=_LIMIT, help=f"most records to show; default: {_LIMIT}")
    audit.set_defaults(command=_command)
    verify = audit.add_subparsers(metavar="verify").add_parser(
        "verify", help="say whether records in files were changed, removed, moved or added"
    )
    verify.add_argument("files", nargs="+", metavar="FILE", help="file of audit records or a pod's log; - for input")
    verify.add_argument("--contains", action="append", metavar="HASH", help="hash that a record must have")
    verify.add_argument("--json", action="store_true", help="print JSON")
    add_output(verify)
    verify.set_defaults(command=lambda _: run_server_program("audit", "audit verify"))


def _command(arguments: argparse.Namespace) -> int:
    query = {"user": arguments.user, "event": arguments.event, "limit": min(arguments.limit, _PAGE)}
    records: list[dict[str, Any]] = []
    replicas: list[str] = []

    def use(page: dict[str, Any]) -> bool:
        replicas.append(page["replica"])
        if page["replica"] != replicas[0]:  # whose file is another one
            say("Another gateway answered now, which has records of its own: older ones of the first are left out.")
            return False
        records.extend(page["records"])
        return len(records) < int(arguments.limit)

    with server_api(arguments, _ELSEWHERE) as server:
        pages(server, "/audit", query, use)
    del records[arguments.limit :]
    if arguments.json:
        print_json(records)
    else:
        print_table(_TITLES, map(_row, records))
    return 0


def _row(record: dict[str, Any]) -> list[object]:
    what = next((record[name] for name in ("tool", "uri", "path", "method", "tenant") if name in record), None)
    outcome = record.get("error") or record.get("outcome") or record.get("phase")
    return [*(record.get(name) for name in ("time", "user", "event")), what, record.get("sandbox"), outcome]
