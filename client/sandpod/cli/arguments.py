"""What many commands take: which server, which sandbox, which form of output."""

import argparse

from sandpod import endpoint
from sandpod.api import Api
from sandpod.sandbox import Server
from sandpod.transport import BlockingTransport

DEFAULT = "default"  # your default sandbox


def server_options() -> argparse.ArgumentParser:
    """Return a parser of the options that say which server, and of --json."""
    parser = argparse.ArgumentParser(add_help=False)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--profile", help="profile that `sandpod login` made; default: SANDPOD_URL, else the default one"
    )
    which.add_argument("--url", help="address of a server; the key is SANDPOD_KEY")
    which.add_argument("--local", action="store_true", help="a server on this machine that ends with this command")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def server(arguments: argparse.Namespace) -> Server:
    """Return which server is meant."""
    return Server(url=arguments.url, profile=endpoint.LOCAL if arguments.local else arguments.profile)


def api(arguments: argparse.Namespace) -> Api:
    """Return that server, for requests that no sandbox has."""
    which = server(arguments)
    return Api(BlockingTransport(), lambda: endpoint.find(which.get("url"), None, which.get("profile")))


def is_at_a_server(arguments: argparse.Namespace) -> bool:
    """Whether a server is named, chosen or runs here; none is started just to be asked."""
    return bool(arguments.url or arguments.local or arguments.profile or endpoint.is_chosen())
