"""Which server is used: what the program says, else the environment, a profile, one that runs here, one of its own."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from sandpod import device_flow, local_server, running_server
from sandpod.errors import InvalidArgumentError, SandpodError
from sandpod.keys import store_key, stored_key
from sandpod.transport import TIMEOUT

LOCAL: Final = "local"  # a profile that every machine has: a server that is started here
_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and the key to send to it."""

    url: str
    key: str | None = field(default=None, repr=False)


def find(url: str | None = None, key: str | None = None, profile: str | None = None) -> Endpoint:
    """Return the server to use. It may start one, which takes seconds. Raises SandpodError: there is none."""
    given = url or (None if profile else os.environ.get("SANDPOD_URL"))
    if given:
        return Endpoint(server_url(given), checked_key(key or os.environ.get("SANDPOD_KEY")))
    found = read_profiles()
    name = profile or os.environ.get("SANDPOD_PROFILE") or found.default
    if name is None and not found.profiles and (running := running_server.find()) is not None:
        return Endpoint(server_url(running))  # without a key, which is for another server
    if name == LOCAL or (name is None and not found.profiles):
        return Endpoint(*local_server.address())
    entry = found.profiles.get(name or "")
    if entry is None:
        names = ", ".join([*found.profiles, LOCAL])
        raise _wrong(f"There is no profile {name!r}.", f"Profiles are: {names}. `sandpod login` makes one.")
    return Endpoint(server_url(str(entry.get("url", ""))), checked_key(key or _key_of(str(name), entry)))


def is_chosen() -> bool:
    """Whether the environment or a profile names a server, or one runs here."""
    named = os.environ.get("SANDPOD_URL") or os.environ.get("SANDPOD_PROFILE") or read_profiles().profiles
    return bool(named or running_server.find())


def _key_of(name: str, entry: dict[str, Any]) -> str | None:
    """Return a profile's key; tokens of a sign-in are renewed and kept anew when they end."""
    kept = stored_key(name, entry)
    if kept is None or "token_endpoint" not in entry:
        return kept
    with httpx2.Client(timeout=TIMEOUT) as http:
        tokens = device_flow.renewed(http, kept, entry)
    if tokens is None:
        return device_flow.read_tokens(kept).access
    write_profile(name, {**entry, **store_key(name, tokens.text())}, default=False)
    return tokens.access


def server_url(text: str) -> str:
    """Return the address of a server, of which the MCP endpoint's and the API's are told as well."""
    url = text.strip().rstrip("/")
    for suffix in ("/mcp", "/api/v1"):
        url = url.removesuffix(suffix)
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and not parts.query
    except ValueError:
        is_right = False
    if not is_right or not url.isascii() or not url.isprintable():
        raise _wrong(f"{text!r} is no address of a server.", "Give one such as https://sandpod.example.com.")
    return url


def checked_key(key: str | None) -> str | None:
    """Return a key that can be sent."""
    key = (key or "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise _wrong("The key has characters that no key has.", "Copy it again, whole and alone.")
    return key or None


@dataclass(slots=True)
class Profiles:
    """The profile file: servers by name, and which of them is used when none is named."""

    default: str | None = None
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)


def profile_file() -> Path:
    """Return where profiles are kept."""
    given = os.environ.get("SANDPOD_PROFILES")
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(given) if given else Path(home) / "sandpod/profiles.json"


def read_profiles() -> Profiles:
    """Return all profiles. Raises SandpodError: the file can't be read."""
    try:
        path = profile_file()
    except RuntimeError:  # there is no home
        return Profiles()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        profiles = found.get("profiles", {})
        if not all(isinstance(each, dict) for each in profiles.values()):
            raise _unreadable(path)
        return Profiles(found.get(_DEFAULT), profiles)
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError, AttributeError) as error:
        raise _unreadable(path) from error


def write_profile(name: str, entry: Mapping[str, Any], *, default: bool) -> None:
    """Add a profile, or replace it; only this user can read the file. Raises SandpodError."""
    path, found = profile_file(), read_profiles()
    found.profiles[name] = dict(entry)
    if default or found.default is None:
        found.default = name
    text = json.dumps({_DEFAULT: found.default, "profiles": found.profiles}, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:  # of mode 0600
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise SandpodError(
            "not_found", f"{path} can't be written.", "Make it writable.", cause=error.strerror
        ) from error


def _wrong(message: str, step: str) -> SandpodError:
    return InvalidArgumentError("invalid_argument", message, step)


def _unreadable(path: Path) -> SandpodError:
    return _wrong(f"The profile file {path} can't be read.", "Correct it, or delete it and run `sandpod login`.")
