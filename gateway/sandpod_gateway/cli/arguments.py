"""What commands say of arguments that can't be, and what those need that read or write in a cluster."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError

ANONYMOUS: Final = (
    "whoever reaches this server is the same user of it, with all sandboxes and files, and an administrator; only what "
    "stands in front of it keeps others out"
)
"""What a server without keys that listens on more than loopback means."""


def wrong(message: str, step: str) -> StartError:
    """Return the error of a command line."""
    return StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)


def add_output(parser: argparse.ArgumentParser, *choices: str) -> None:
    """Add --output, and --json, which other commands of `sandpod` have."""
    parser.add_argument("--output", choices=choices, default="text", help="output format")
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as --output json")


def check_reference(flag: str, value: str, kind: Any, usual: str) -> None:
    """Raise StartError unless a flag's value is a reference of that kind; `usual` is that of the chart's defaults."""
    try:
        TypeAdapter[str](kind).validate_python(value)
    except ValidationError as error:
        raise wrong(f"{flag} is NAMESPACE/NAME.", f"With the chart's defaults it is {usual}.") from error


@contextmanager
def kubernetes_client() -> Iterator[None]:
    """Import what needs the Kubernetes client. Raises StartError: it is an extra, and not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise wrong(
            "The Kubernetes client is not installed.", "Install it: pip install 'sandpod[kubernetes]'"
        ) from error
