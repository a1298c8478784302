"""The program `sandpod`. An error becomes one sentence on standard error.

Commands of the server are another distribution's; see `server_program`.
"""

import argparse
import os
import sys
from importlib.metadata import version

from sandpod.cli.server_program import EXIT_REFUSED, SERVER_COMMANDS, run_server_program


def main() -> None:
    """Run the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in SERVER_COMMANDS:
        sys.exit(run_server_program(name))
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
    from sandpod.cli.account import audit, keys, usage  # noqa: PLC0415 - as above

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
    keys.add_parser(commands, options)
    usage.add_parser(commands, options)
    audit.add_parser(commands, options)
    login.add_parser(commands)
    doctor.add_parser(commands, options)
    completion.add_parser(commands, made)
    return made
