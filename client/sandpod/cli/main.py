"""The program `sandpod`. An error becomes one sentence on standard error.

Commands of the server are another distribution's, which announces them as entry points of `sandpod.commands`.
"""

import argparse
import os
import sys
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_REFUSED: Final = 2
SERVER_COMMANDS: Final = ("serve", "stdio", "setup", "keys", "usage", "audit", "verify")


def main() -> None:
    """Run the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in SERVER_COMMANDS:
        found = entry_points(group="sandpod.commands", name=name)
        if not found:
            sys.stderr.write(f"sandpod: `{name}` is a command of the server. Install it: pip install sandpod\n")
            sys.exit(EXIT_REFUSED)
        command: Callable[[], None] = next(iter(found)).load()
        command()
        return
    from sandpod.cli.output import say  # noqa: PLC0415 - the server's commands do without all of this
    from sandpod.errors import SandpodError  # noqa: PLC0415

    arguments = parser().parse_args()
    try:
        code = arguments.command(arguments)
        sys.stdout.flush()
    except SandpodError as error:
        say(str(error))
        code = getattr(arguments, "exit_refused", EXIT_REFUSED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be written has nowhere to go
        code = 141
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the client's commands."""
    from sandpod.cli import arguments, completion, doctor, files, lists, login, run, shell  # noqa: PLC0415 - as above

    made = argparse.ArgumentParser(
        prog="sandpod",
        description="A safe, fast place for AI agents to run code.",
        epilog=f"Commands of the server, if that is installed: {', '.join(SERVER_COMMANDS)}.",
    )
    made.add_argument("--version", action="version", version=version("sandpod-client"))
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    options = arguments.server_options()
    run.add_parser(commands, options)
    shell.add_parser(commands, options)
    files.add_parsers(commands, options)
    lists.add_parsers(commands, options)
    login.add_parser(commands)
    doctor.add_parser(commands, options)
    completion.add_parser(commands, made)
    return made
