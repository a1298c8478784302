"""`sandpod login`: makes a profile of a server, with a key, or with a sign-in at the server's provider."""

import argparse
import getpass
import sys
from typing import Any
from urllib.parse import urlsplit

import httpx2

from sandpod import device_flow, endpoint
from sandpod.api import Api
from sandpod.cli.output import print_json, printable, say
from sandpod.endpoint import Endpoint
from sandpod.errors import InvalidArgumentError, UnauthorizedError
from sandpod.keys import IN_KEYRING, store_key
from sandpod.transport import TIMEOUT, BlockingTransport, finish


def add_parser(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    login = commands.add_parser("login", help="make a profile of a server, with a key or a sign-in")
    login.add_argument("url", metavar="URL", help="the server's address")
    login.add_argument("--name", help="the profile's; default: the server's host")
    login.add_argument("--with-key", action="store_true", help="ask for an API key even if users can sign in")
    login.add_argument("--client-id", help="client of the provider where users sign in; default: one is registered")
    login.add_argument("--json", action="store_true", help="print JSON")
    login.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Find a key that the server takes, and keep it."""
    url = endpoint.server_url(arguments.url)
    name = arguments.name or urlsplit(url).hostname or ""
    if name == endpoint.LOCAL or not name.isprintable():
        raise InvalidArgumentError("invalid_argument", f"{name!r} can't be a profile's name.", "Choose another one.")
    if not device_flow.is_safe(url):
        say(f"What is sent to {url} is not encrypted: whoever is on the way can read the key.")
    entry: dict[str, Any] = {"url": url}
    if not _is_taken(url, None):
        secret, more = _found(url, arguments)
        key = device_flow.read_tokens(secret).access if more else endpoint.checked_key(secret)
        if key is None or not _is_taken(url, key):
            raise UnauthorizedError("unauthorized", "The server does not take that key.", "Get another one.")
        entry |= {**more, **store_key(name, secret)}
    endpoint.write_profile(name, entry, default=True)
    where = "the system's keyring" if IN_KEYRING in entry else str(endpoint.profile_file())
    if arguments.json:
        print_json({"profile": name, "url": url, "kept_in": where if len(entry) > 1 else None})
    else:
        kept = f"Its key is in {where}." if len(entry) > 1 else "It needs no key."
        say(f"The profile {name} is made, and used from now on. {kept}")
    return 0


def _is_taken(url: str, key: str | None) -> bool:
    """Whether a server takes a key, or calls without one."""
    api = Api(BlockingTransport(), lambda: Endpoint(url, key))
    try:
        finish(api.call("GET", "/sandboxes", query={"limit": 1}))
    except UnauthorizedError:
        return False
    finally:
        finish(api.close())
    return True


def _key() -> str:
    return getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline().strip()


def _found(url: str, arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return a key; or the tokens of a sign-in, and what their profile has to say of it."""
    if arguments.with_key or not (sys.stdin.isatty() or arguments.client_id):
        return _key(), {}
    with httpx2.Client(timeout=TIMEOUT) as http:
        provider = device_flow.find_provider(http, url, arguments.client_id)
        if provider is None and arguments.client_id:
            step = "Leave --client-id out, and give an API key."
            raise InvalidArgumentError("invalid_argument", "Nobody can sign in there from a terminal.", step)
        if provider is None:
            return _key(), {}
        tokens = device_flow.sign_in(http, provider, _tell)
    return tokens.text(), {"token_endpoint": provider.token_endpoint, "client_id": provider.client_id}


def _tell(address: str, code: str) -> None:
    sys.stderr.write(f"Open {printable(address)} and check or type this code there: {printable(code)}\n")
