"""`sandpod keys`: makes, lists, revokes and rotates API keys, in a file or in a Secret of a cluster."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import yaml

from sandpod_api.base import rfc3339
from sandpod_gateway.api.toolsets import ToolsetName
from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile
from sandpod_gateway.auth.key_file import change_file
from sandpod_gateway.auth.key_management import GRACE_HOURS, NewKey, found, grace_end, new_key, successor
from sandpod_gateway.backends.kubernetes.settings import SecretReference
from sandpod_gateway.cli import usage
from sandpod_gateway.cli.arguments import add_output, check_reference, kubernetes_client, wrong
from sandpod_gateway.errors import StartError
from sandpod_gateway.usage.report import last_used


def add_parser(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    keys = commands.add_parser("keys", help="create, list, revoke and rotate API keys").add_subparsers(
        dest="keys_command", required=True, metavar="COMMAND"
    )
    create = keys.add_parser("create", help="create a key; it is shown once, and only its hash is stored")
    create.add_argument("--user", required=True, help="who the key is for; sandboxes belong to users")
    create.add_argument("--name", default="default", help="what it is for")
    create.add_argument("--days", type=int, help="days until it expires; default: never")
    create.add_argument("--tools", help="toolsets that it may use, such as core,files; default: all")
    create.add_argument("--templates", help="templates whose sandboxes it may use, the default first; default: all")
    create.add_argument("--read-only", action="store_true", help="whether it may use only tools that change nothing")
    create.add_argument("--tenant", help="tenant that the user is of; default: the default one")
    create.add_argument("--admin", action="store_true", help="whether it is an administrator's")
    listing = keys.add_parser("list", help="list the keys, without what would let anyone use them")
    listing.add_argument("--usage", type=Path, help="folder of usage.directory, which says when keys were used last")
    revoke = keys.add_parser("revoke", help="remove keys: servers refuse them at once")
    revoke.add_argument("id", nargs="*", help="as `sandpod keys list` shows it")
    revoke.add_argument("--user", help="all keys of this user")
    revoke.add_argument("--tenant", help="the user's tenant; default: the default one")
    rotate = keys.add_parser("rotate", help="create a key like an existing one, which then expires")
    rotate.add_argument("id", help="as `sandpod keys list` shows it")
    rotate.add_argument("--days", type=int, help="days until the new key expires; default: it ends with the old one")
    rotate.add_argument("--grace", type=int, default=GRACE_HOURS, help="hours until the old key expires; default: 24")
    for command, required in ((create, False), (listing, True), (revoke, True), (rotate, True)):
        where = command.add_mutually_exclusive_group(required=required)
        without = "" if required else "; default: print the entry"
        where.add_argument("--file", type=Path, help=f"key file{without}")
        where.add_argument("--secret", help="Secret of a cluster, NAMESPACE/NAME, found through your kubeconfig")
        if command is create:
            where.add_argument("--print", action="store_true", help="print the entry, which is the default")
    for command in (create, listing, revoke, rotate):
        add_output(command, "text", "json")


def run(arguments: argparse.Namespace) -> None:
    """Run one of the commands. Raises StartError: an argument is wrong, or keys can't be read or written."""
    commands = {"create": _create, "list": _list, "revoke": _revoke, "rotate": _rotate}
    commands[arguments.keys_command](arguments)


def _create(arguments: argparse.Namespace) -> None:
    tools, known = _names(arguments.tools), get_args(ToolsetName)
    if tools is not None and (not tools or not set(tools) <= set(known)):
        raise wrong("--tools has a name that is not a toolset.", f"Toolsets are: {', '.join(known)}.")
    scopes = {"tools": tools, "templates": _names(arguments.templates), "read_only": arguments.read_only}
    scopes |= {"tenant": arguments.tenant, "role": "admin" if arguments.admin else "user"}
    fresh = new_key(arguments.user, arguments.name, arguments.days, scopes)
    if arguments.file is not None or arguments.secret is not None:
        _change(arguments, lambda keys: KeyFile(keys=[*keys.keys, fresh.entry]), make=True)
    _print_key(arguments, fresh)


def _list(arguments: argparse.Namespace) -> None:
    entries: list[KeyEntry] = []

    def look(keys: KeyFile) -> KeyFile:
        entries[:] = keys.keys
        return keys

    _change(arguments, look)
    used = _used(arguments)
    rows = [_row(entry, used.get(entry.id)) for entry in entries]
    if arguments.output == "json":
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    titles = ("id", "tenant", "user", "name", "created", "expires", "last_used", "scopes")
    head = [title.upper().replace("_", " ") for title in titles]
    table = [head, *([str(row[title] or "") for title in titles] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        sys.stdout.write("  ".join(map(str.ljust, cells, widths)).rstrip() + "\n")


def _used(arguments: argparse.Namespace) -> dict[str, datetime]:
    """Return when keys were used last, by their ids, where the gateways' usage is known."""
    if arguments.secret is None:
        return last_used(usage.read(arguments.usage, None)) if arguments.usage is not None else {}
    try:
        return last_used(usage.read(None, arguments.secret.partition("/")[0]))  # it is where the Secret is
    except StartError as error:
        sys.stderr.write(f"When the keys were used is not known: {error.message} {error.next_step}\n")
        return {}


def _row(entry: KeyEntry, used: datetime | None) -> dict[str, str | None]:
    scopes = [f"tools={','.join(entry.tools)}"] if entry.tools else []
    scopes += [f"templates={','.join(entry.templates)}"] if entry.templates else []
    scopes += ["read-only"] if entry.read_only else []
    scopes += ["admin"] if entry.role == "admin" else []
    state = "" if entry.is_valid(datetime.now(UTC)) else " (expired)"
    return {
        "id": entry.id,
        "tenant": entry.tenant,
        "user": entry.user,
        "name": entry.name,
        "created": rfc3339(entry.created),
        "expires": None if entry.expires is None else rfc3339(entry.expires) + state,
        "last_used": None if used is None else rfc3339(used),
        "scopes": " ".join(scopes) or None,
    }


def _revoke(arguments: argparse.Namespace) -> None:
    if bool(arguments.id) == (arguments.user is not None):
        raise wrong("Name keys by their ids, or all of a user's by --user.", "`sandpod keys list` shows both.")
    revoked: list[KeyEntry] = []

    def change(keys: KeyFile) -> KeyFile:
        whose = arguments.user, arguments.tenant
        ids = arguments.id or [each.id for each in keys.keys if (each.user, each.tenant) == whose]
        if not ids:
            raise wrong(f"There is no key of user {arguments.user}.", "`sandpod keys list` shows the keys there are.")
        revoked[:] = found(keys, ids)
        return keys.without(ids)

    _change(arguments, change)
    if arguments.output == "json":
        sys.stdout.write(json.dumps([_row(entry, None) for entry in revoked]) + "\n")
        return
    for entry in revoked:
        sys.stdout.write(f"revoked {entry.id} of {entry.user} ({entry.name})\n")


def _rotate(arguments: argparse.Namespace) -> None:
    end, made = grace_end(arguments.grace), list[NewKey]()

    def change(keys: KeyFile) -> KeyFile:
        [old] = found(keys, [arguments.id])
        made[:] = [successor(old, arguments.days)]
        return keys.rotated(old, made[0].entry, end)

    _change(arguments, change)
    _print_key(arguments, made[0])


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]


def _print_key(arguments: argparse.Namespace, made: NewKey) -> None:
    key, entry = made
    plain = entry.model_dump(mode="json", exclude_defaults=True)
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"key": key, "id": entry.id, "entry": plain}) + "\n")
        return
    place = arguments.file or (f"Secret {arguments.secret}" if arguments.secret else None)
    where = f"added to {place}" if place is not None else "to put under `keys:` of the key file"
    listing = yaml.safe_dump([plain], sort_keys=False)
    sys.stdout.write(f"key (shown only now): {key}\nentry, {where}:\n{listing}")


def _change(arguments: argparse.Namespace, change: Callable[[KeyFile], KeyFile], *, make: bool = False) -> None:
    """Read the keys and change them, while nobody else does."""
    if arguments.file is not None:
        change_file(arguments.file, change, make=make)
        return
    check_reference("--secret", arguments.secret, SecretReference, "sandpod/sandpod-keys")
    with kubernetes_client():
        from sandpod_gateway.backends.kubernetes.secrets import change_keys  # noqa: PLC0415 - an optional extra
    asyncio.run(change_keys(arguments.secret, change, make=make))
