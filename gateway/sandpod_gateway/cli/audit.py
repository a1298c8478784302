"""`sandpod audit`: verifies the records of the audit log."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.chain import MAX_LINE
from sandpod_gateway.audit.verify import Replica, Verification, counted
from sandpod_gateway.cli.arguments import add_output
from sandpod_gateway.errors import StartError

EXIT_WRONG: Final = 1

_STDIN: Final = "-"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    audit = commands.add_parser("audit", help="verify the audit log").add_subparsers(
        dest="audit_command", required=True, metavar="COMMAND"
    )
    verify = audit.add_parser("verify", help="say whether records were changed, removed, moved or added")
    verify.add_argument("files", nargs="+", metavar="FILE", help="file of audit records or a pod's log; - for input")
    verify.add_argument("--contains", action="append", default=[], metavar="HASH", help="hash that a record must have")
    add_output(verify, "text", "json")


def run(arguments: argparse.Namespace) -> int:
    """Verify files; return the exit code. Raises StartError: one can't be read, or there is no record in them."""
    verification = Verification()
    verification.expect(arguments.contains)
    for name in dict.fromkeys(arguments.files):
        try:
            with sys.stdin.buffer if name == _STDIN else Path(name).open("rb") as file:
                verification.read(name, _lines(file))
        except OSError as error:
            message = f"The file {name} can't be read: {error.strerror}."
            raise StartError(ErrorCode.NOT_FOUND, message, next_step="Name files of audit records.") from error
    if not verification.replicas:
        message = "There are no audit records in these files."
        step = "They are in the file that audit.path names, or in the gateway's standard output."
        raise StartError(ErrorCode.NOT_FOUND, message, next_step=step)
    remarks = verification.finish()
    sys.stdout.write((_json if arguments.output == "json" else _text)(verification, remarks))
    return EXIT_WRONG if verification.problems else 0


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of one that is too long for a record, the beginning."""
    while line := file.readline(MAX_LINE):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)
        yield line


def _text(verification: Verification, remarks: list[str]) -> str:
    lines = [problem.message for problem in verification.problems]
    lines += [f"{_name(each)}: {counted(each.records)}, the last hash is {_last(each)}." for each in _all(verification)]
    lines += remarks
    records = sum(each.records for each in _all(verification))
    lines.append("The audit log does NOT verify." if verification.problems else f"OK: {counted(records)} verified.")
    return "\n".join(lines) + "\n"


def _json(verification: Verification, remarks: list[str]) -> str:
    replicas = [
        {
            "replica": each.replica,
            "sink": each.sink,
            "records": each.records,
            "first_sequence": each.pieces[0].first.sequence,
            "last_sequence": each.pieces[-1].last.sequence,
            "last_hash": _last(each),
            "stopped": each.pieces[-1].last.stops,
            "lost": each.lost,
            "unfinished": len(each.unfinished),
        }
        for each in _all(verification)
    ]
    report = {
        "ok": not verification.problems,
        "problems": [asdict(problem) for problem in verification.problems],
        "replicas": replicas,
        "remarks": remarks,
        "other_lines": verification.other_lines,
    }
    return json.dumps(report) + "\n"


def _all(verification: Verification) -> list[Replica]:
    return list(verification.replicas.values())


def _name(replica: Replica) -> str:
    return f"{replica.replica} ({replica.sink})"


def _last(replica: Replica) -> str:
    return replica.pieces[-1].last.hash
