"""`sandpod shell`: a terminal in a sandbox, in this terminal."""

import argparse
import asyncio
import sys
from typing import Any

from sandpod.cli.arguments import DEFAULT, api
from sandpod.cli.output import print_json, say
from sandpod.cli.run import exit_code_of
from sandpod.errors import InvalidArgumentError
from sandpod.transport import finish


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    shell = commands.add_parser("shell", help="open a terminal in a sandbox", parents=[options])
    shell.add_argument("sandbox", nargs="?", default=DEFAULT, metavar="SANDBOX", help="handle or name")
    shell.add_argument("-c", "--command", dest="program", default="", help="what to run in place of a shell")
    shell.add_argument("--cwd", default=".", help="folder that it begins in, relative to the workspace")
    shell.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Connect this terminal until the program ends; return its exit code."""
    if not sys.stdin.isatty():
        step = "Use `sandpod run --language shell` for programs that no person types into."
        raise InvalidArgumentError("invalid_argument", "A shell needs a terminal as its input.", step)
    from sandpod.cli.raw_terminal import RawTerminal  # noqa: PLC0415 - not every system has terminals like that

    server_api = api(arguments)
    try:
        finish(server_api.find())  # which may take seconds, in which Ctrl-C still ends this command
        here = RawTerminal(server_api, arguments.sandbox, command=arguments.program, cwd=arguments.cwd)
        ended = asyncio.run(here.run())
    finally:
        finish(server_api.close())
    if arguments.json:
        print_json(ended)
    elif ended.outcome not in {"ok", "error"}:
        say(ended.detail or f"The terminal ended: {ended.outcome}.")
    return exit_code_of(ended)
