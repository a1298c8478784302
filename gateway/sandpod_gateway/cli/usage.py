"""`sandpod usage`: shows what callers used, from a folder or from the ConfigMaps of a cluster."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, get_args

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.settings import UsageReference
from sandpod_gateway.cli.arguments import add_output, check_reference, kubernetes_client
from sandpod_gateway.errors import StartError
from sandpod_gateway.usage.document import Document, decode
from sandpod_gateway.usage.report import By, Report, Value, report
from sandpod_gateway.usage.stores import USAGE, Documents, FolderStore


def add_parser(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    usage = commands.add_parser("usage", help="show what callers used: processor, memory and sandbox time, bytes, runs")
    where = usage.add_mutually_exclusive_group(required=True)
    where.add_argument("--directory", type=Path, help="folder that the setting usage.directory names")
    where.add_argument(
        "--configmaps",
        help="what kubernetes.usage names, NAMESPACE/NAME, in the cluster of your kubeconfig",
    )
    usage.add_argument("--by", choices=get_args(By), default="user", help="one row for each; default: user")
    usage.add_argument("--since", help="first day, as 2026-11-30 (UTC); default: all days that are kept")
    add_output(usage, "text", "csv", "json")


def run(arguments: argparse.Namespace) -> None:
    """Run the command. Raises StartError: an argument is wrong, or usage can't be read."""
    found = report(read(arguments.directory, arguments.configmaps), by=arguments.by, since=arguments.since)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(found.objects()) + "\n")
    elif arguments.output == "csv":
        sys.stdout.write(found.csv())
    else:
        _print(found)


def read(directory: Path | None, reference: str | None) -> list[Document]:
    """Return the documents in a folder, or of NAMESPACE/NAME in a cluster, or else of a NAMESPACE.

    Raises StartError: they can't be read.
    """
    if directory is not None:
        return _parsed(FolderStore(directory).read_now())
    if reference is not None and "/" in reference:
        check_reference("--configmaps", reference, UsageReference, "sandpod/sandpod-gateway-usage")
    with kubernetes_client():
        from sandpod_gateway.backends.kubernetes.usage import read_all  # noqa: PLC0415 - an optional extra
    return _parsed(asyncio.run(read_all(reference or "")))


def _parsed(documents: Documents) -> list[Document]:
    found = []
    for name, stored in documents.items():
        if name.startswith(USAGE):
            try:
                found.append(decode(stored.content))
            except ValueError as error:
                message = f"The usage document {name} can't be read: {error}."
                step = "Use the version of sandpod that the gateways have."
                raise StartError(ErrorCode.INVALID_CONTENT, message, next_step=step) from error
    return found


def _print(found: Report) -> None:
    table = [[column.upper() for column in found.columns], *([_text(each) for each in row] for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    numbers = [bool(found.rows) and not isinstance(each, str) for each in (found.rows or [found.columns])[0]]
    for cells in table:
        aligned = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, numbers, strict=True)
        ]
        sys.stdout.write("  ".join(aligned).rstrip() + "\n")


def _text(value: Value) -> str:
    # A name can have line breaks and escape sequences, which must not reach a terminal.
    return (value if value.isprintable() else ascii(value)[1:-1]) if isinstance(value, str) else str(value)
