"""`sandpod keys`: lists, makes, revokes and rotates API keys at a server."""

import argparse
import hashlib
from typing import Any, Final
from urllib.parse import quote

from sandpod.api import Api
from sandpod.cli.account.places import add_output, is_json, names_a_place, server_api
from sandpod.cli.arguments import is_at_a_server
from sandpod.cli.output import print_json, print_table, printable, say
from sandpod.cli.server_program import run_server_program
from sandpod.errors import InvalidArgumentError, NotFoundError
from sandpod.local_server import is_installed
from sandpod.transport import finish

_ELSEWHERE: Final = "--file and --secret"
_TITLES: Final = ("ID", "TENANT", "USER", "NAME", "CREATED", "EXPIRES", "LAST USED", "SCOPES")


def add_parser(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the command to the parser's subcommands."""
    keys = commands.add_parser(
        "keys",
        help="list, create, revoke and rotate API keys",
        epilog="With --file, --secret or --print it is for who keeps the server, which has to be installed here.",
    ).add_subparsers(required=True, metavar="COMMAND")
    parsers = {}
    for name, text, command in (
        ("list", "list the keys, without what would let anyone use them", _list),
        ("create", "create a key; it is shown once", _create),
        ("revoke", "remove keys: they are refused at once", _revoke),
        ("rotate", "create a key like an existing one, which then expires", _rotate),
    ):
        parsers[name] = parser = keys.add_parser(name, help=text, parents=[options])
        parser.set_defaults(command=_command, at_server=command)
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--file", help="key file, without a server")
        where.add_argument("--secret", help="Secret of a cluster, NAMESPACE/NAME, without a server")
        add_output(parser)
    parsers["list"].add_argument("--usage", help="with --file, folder of usage.directory: when keys were used last")
    _add_scopes(parsers["create"])
    parsers["create"].add_argument(
        "--print", action="store_const", const=True, help="print the entry for a key file, without a server"
    )
    parsers["revoke"].add_argument("id", nargs="*", help="as `sandpod keys list` shows it")
    parsers["revoke"].add_argument("--user", help="all keys of this user")
    parsers["revoke"].add_argument("--tenant", help="the user's tenant; default: the default one")
    parsers["rotate"].add_argument("id", help="as `sandpod keys list` shows it")
    parsers["rotate"].add_argument("--days", type=int, help="days until the new key expires; default: as the old one")
    parsers["rotate"].add_argument("--grace", type=int, help="hours until the old key expires; default: 24")


def _add_scopes(create: argparse.ArgumentParser) -> None:
    create.add_argument("--user", help="for administrators: who the key is for; default: you")
    create.add_argument("--name", default="default", help="what it is for")
    create.add_argument("--days", type=int, help="days until it expires; default: as what you call with")
    create.add_argument("--tools", help="toolsets that it may use, such as core,files; default: yours")
    create.add_argument("--templates", help="templates whose sandboxes it may use, the default first; default: yours")
    create.add_argument("--read-only", action="store_true", help="whether it may use only tools that change nothing")
    create.add_argument("--tenant", help="for administrators: the user's tenant; default: yours")
    create.add_argument("--admin", action="store_true", help="whether it is an administrator's")


def _command(arguments: argparse.Namespace) -> int:
    has_place = names_a_place(arguments, "file", "secret", "usage", "print")
    if has_place or (arguments.at_server is _create and is_installed() and not is_at_a_server(arguments)):
        return run_server_program("keys", "keys --file")
    with server_api(arguments, _ELSEWHERE) as server:
        arguments.at_server(arguments, server)
    return 0


def _list(arguments: argparse.Namespace, server: Api) -> None:
    keys = finish(server.pages("/keys", "keys"))
    if is_json(arguments):
        print_json(keys)
    else:
        print_table(_TITLES, map(_row, keys))


def _create(arguments: argparse.Namespace, server: Api) -> None:
    body = {
        **{name: getattr(arguments, name) for name in ("user", "name", "days", "tenant")},
        "tools": _names(arguments.tools),
        "templates": _names(arguments.templates),
        "read_only": arguments.read_only,
        "role": "admin" if arguments.admin else "user",
    }
    _show_made(arguments, server, finish(server.call("POST", "/keys", body)))


def _revoke(arguments: argparse.Namespace, server: Api) -> None:
    if bool(arguments.id) == (arguments.user is not None):
        step = "`sandpod keys list` shows both."
        raise InvalidArgumentError("invalid_argument", "Name keys by their ids, or all of a user's by --user.", step)
    finish(server.find())
    ids = list(dict.fromkeys(arguments.id)) or _ids_of(server, arguments.user, arguments.tenant)
    # The key that this is done with comes last: after it nothing is done any more.
    own = hashlib.sha256(server.headers.get("Authorization", "").removeprefix("Bearer ").encode()).hexdigest()
    for key_id in sorted(ids, key=own.startswith):
        revoked = finish(server.call("DELETE", f"/keys/{quote(key_id, safe='')}"))
        if is_json(arguments):
            print_json(revoked)
        else:
            print_table([f"revoked {key_id}"], [])


def _ids_of(server: Api, user: str, tenant: str | None) -> list[str]:
    """Return the ids of a user's keys. Raises SandpodError: there are none; users of other tenants are others."""
    keys = [each for each in finish(server.pages("/keys", "keys")) if each["user"] == user]
    if ids := [each["key_id"] for each in keys if each["tenant"] == tenant]:
        return ids
    others = ", ".join(sorted({each["tenant"] or "the default tenant" for each in keys}))
    there = f"There are some in {others}: --tenant says which tenant is meant, and without it the default one is."
    step = there if others else "`sandpod keys list` shows the keys that there are."
    where = f"the tenant {tenant}" if tenant is not None else "the default tenant"
    raise NotFoundError("not_found", f"There is no key of the user {user} in {where}.", step)


def _rotate(arguments: argparse.Namespace, server: Api) -> None:
    path, body = f"/keys/{quote(arguments.id, safe='')}/rotate", {"days": arguments.days, "grace": arguments.grace}
    _show_made(arguments, server, finish(server.call("POST", path, body)))


def _show_made(arguments: argparse.Namespace, server: Api, made: dict[str, Any]) -> None:
    if is_json(arguments):
        print_json(made)
        return
    say(f"The key is made at {server.url}, and shown only now.")
    print_table([printable(made["key"])], [])
    print_table(_TITLES, [_row(made)])


def _row(key: dict[str, Any]) -> list[str | None]:
    scopes = [f"{name}={','.join(key[name])}" for name in ("tools", "templates") if key.get(name)]
    scopes += ["read-only"] if key.get("read_only") else []
    scopes += ["admin"] if key.get("role") == "admin" else []
    expires = f"{key['expires_at']} (expired)" if key.get("expired") else key.get("expires_at")
    first = [key.get(name) for name in ("key_id", "tenant", "user", "name", "created_at")]
    return [*first, expires, key.get("last_used_at"), " ".join(scopes)]


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
