"""`sandpod keys create`: makes an API key, and the entry by which a server recognizes it."""

import argparse
import json
import os
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import ToolsetName
from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile, make_key, read_keys
from sandpod_gateway.errors import StartError


def add_parser(commands: Any) -> None:
    """Add the commands to the command line."""
    keys = commands.add_parser("keys", help="create API keys").add_subparsers(
        dest="keys_command", required=True, metavar="COMMAND"
    )
    create = keys.add_parser("create", help="create a key; it is shown once, and only its hash is stored")
    create.add_argument("--user", required=True, help="who the key is for; sandboxes belong to users")
    create.add_argument("--name", default="default", help="what it is for")
    create.add_argument("--days", type=int, help="days until it expires; default: never")
    create.add_argument("--tools", help="toolsets that it may use, such as core,files; default: all")
    create.add_argument("--file", type=Path, help="key file to add it to; default: print the entry")
    create.add_argument("--output", choices=("text", "json"), default="text", help="output format")


def run(arguments: argparse.Namespace, now: datetime) -> None:
    """Create a key from the arguments, and print it. Raises StartError: an argument or the key file is wrong."""
    if arguments.days is not None and arguments.days < 1:
        raise StartError(ErrorCode.INVALID_ARGUMENT, "--days is at least 1.", next_step="Correct it.")
    tools = None if arguments.tools is None else [name.strip() for name in arguments.tools.split(",")]
    known = get_args(ToolsetName)
    if tools is not None and not set(tools) <= set(known):
        message, step = "--tools has a name that is not a toolset.", f"Toolsets are: {', '.join(known)}."
        raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    try:
        key, entry = make_key(user=arguments.user, name=arguments.name, days=arguments.days, now=now, tools=tools)
    except ValidationError as error:
        message = "User and name have 1 to 128 characters."
        raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step="Correct them.") from error
    if arguments.file is not None:
        _add(arguments.file, entry)
    sys.stdout.write(_report(key, entry, arguments))


def _report(key: str, entry: KeyEntry, arguments: argparse.Namespace) -> str:
    plain = entry.model_dump(mode="json", exclude_none=True)
    if arguments.output == "json":
        return json.dumps({"key": key, "entry": plain}) + "\n"
    where = f"added to {arguments.file}" if arguments.file is not None else "to put under `keys:` of the key file"
    listing = yaml.safe_dump([plain], sort_keys=False)
    return f"key (shown only now): {key}\nentry, {where}:\n{listing}"


def _add(path: Path, entry: KeyEntry) -> None:
    """Add an entry to the file. The file is replaced as a whole, and readable by its owner only."""
    keys = read_keys(path).keys if path.exists() else []
    file = KeyFile(keys=[*keys, entry])
    text = yaml.safe_dump(file.model_dump(mode="json", exclude_none=True), sort_keys=False)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(temporary).replace(path)
    except OSError as error:
        message = f"The key file {path} can't be written: {error.strerror}."
        raise StartError(ErrorCode.BACKEND_ERROR, message, next_step="Choose another place with --file.") from error
