"""The commands of the server, another distribution, which announces them as entry points of `sandpod.commands`."""

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER_COMMANDS: Final = ("serve", "stdio", "setup", "verify")
SHARED_COMMANDS: Final = ("keys", "usage", "audit")  # the client's at a server, the server's on files and clusters
EXIT_REFUSED: Final = 2


def run_server_program(name: str, title: str | None = None) -> int:
    """Let the server's program do what was typed, of which the command has that name; return its exit code."""
    found = entry_points(group="sandpod.commands", name=name)
    if not found:
        sys.stderr.write(f"sandpod: `{title or name}` is a command of the server. Install it: pip install sandpod\n")
        return EXIT_REFUSED
    command: Callable[[], None] = next(iter(found)).load()
    command()  # which exits
    return 0
