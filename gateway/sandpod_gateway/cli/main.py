"""The command `sandpod`. An error becomes one sentence on standard error and exit code 2."""

import argparse
import gc
import importlib.metadata
import sys
from pathlib import Path
from typing import Final

from sandpod_gateway.cli import audit, keys, usage, verify
from sandpod_gateway.errors import SandpodError

EXIT_REFUSED: Final = 2


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="sandpod", description="A safe, fast place for AI agents to run code.")
    parser.add_argument("--version", action="version", version=importlib.metadata.version("sandpod"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("serve", "serve MCP over HTTP"),
        ("stdio", "serve MCP over standard input and output"),
        ("setup", "install the libraries that local sandboxes have"),
    ):
        command = commands.add_parser(name, help=text, add_help=False)
        command.add_argument("--config", type=Path, help="settings file (YAML)")
    keys.add_parser(commands)
    audit.add_parser(commands)
    usage.add_parser(commands)
    verify.add_parser(commands)
    arguments, rest = parser.parse_known_args()
    if arguments.command in {"keys", "audit", "usage", "verify"} and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    sys.exit(_run(arguments, rest))


def _run(arguments: argparse.Namespace, flags: list[str]) -> int:
    try:
        if arguments.command == "keys":
            keys.run(arguments)
        elif arguments.command == "audit":
            return audit.run(arguments)
        elif arguments.command == "usage":
            usage.run(arguments)
        elif arguments.command == "verify":
            return verify.run(arguments)
        else:
            _serve(arguments, flags)
    except SandpodError as error:
        cause = f" ({error.cause.rstrip('.')})" if error.cause else ""
        sys.stderr.write(f"sandpod: {error.message.rstrip('.')}{cause}. {error.next_step}\n")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(arguments: argparse.Namespace, flags: list[str]) -> None:
    # FastMCP takes more than a second to import, which the other commands do without. What it makes stays: to look
    # through that for garbage takes a tenth of the start, and later 0.1 s of a call now and then.
    gc.disable()
    from sandpod_gateway.cli import serve, setup  # noqa: PLC0415
    from sandpod_gateway.settings import load  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    settings = load(flags, config=arguments.config, program=f"sandpod {arguments.command}")
    serve.configure_logs(settings)
    if arguments.command == "setup":
        setup.run(settings)
    else:
        serve.run(settings, over_stdio=arguments.command == "stdio")
