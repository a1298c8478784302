"""API keys: created once, stored hashed, checked for each request. They say who a caller is.

The key file is a Secret in a cluster and a plain file elsewhere; it is read again when it changes, so keys can be
added and removed without a restart. A key is never logged and never stored.
"""

import hashlib
import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import yaml
from fastmcp.server.auth import AccessToken, TokenVerifier
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken as SdkToken
from pydantic import AwareDatetime, Field
from starlette.types import Scope

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.api.toolsets import TOOLS, ToolsetName
from sandpod_gateway.errors import StartError

logger = logging.getLogger(__name__)

LOCAL_OWNER: Final = "local"  # the one caller of a server without keys, which listens on loopback only
KEY_ID_BYTES: Final = 8  # of a key's hash: enough to find the key by, and nothing to call with
LOCAL_KEY_ID: Final = bytes(KEY_ID_BYTES)  # stands in links for the key that the local caller does not need
KEY_PREFIX: Final = "sandpod_"  # secret scanners and people recognize it
KEY_BYTES: Final = 32  # 256 random bits: one round of SHA-256 is enough, there is nothing to guess
MAX_FILE: Final = 1024 * 1024  # bytes; Kubernetes bounds a Secret at the same size
MAX_TOKEN: Final = 256  # characters; longer ones are not hashed
POLL_SECONDS: Final = 2.0  # the kubelet itself takes up to a minute to bring a changed Secret


class KeyEntry(StrictModel):
    """One key as it is stored."""

    name: Annotated[str, Field(min_length=1, max_length=128)]  # what the key is for
    user: Annotated[str, Field(min_length=1, max_length=128)]  # whose it is; sandboxes belong to users
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]  # SHA-256 of the key
    created: AwareDatetime
    expires: AwareDatetime | None = None
    tools: Annotated[list[ToolsetName] | None, Field(min_length=1)] = None  # toolsets that it may use; None for all


class KeyFile(StrictModel):
    """The file of keys."""

    keys: Annotated[list[KeyEntry], Field(max_length=10_000)] = Field(default_factory=list)


def hash_key(key: str) -> str:
    """Return a key in the form in which it is stored."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def key_id(stored: str) -> bytes:
    """Return the short id of a key, from the form in which it is stored."""
    return bytes.fromhex(stored.removeprefix("sha256:"))[:KEY_ID_BYTES]


def make_key(
    *, user: str, name: str, days: int | None, now: datetime, tools: list[str] | None = None
) -> tuple[str, KeyEntry]:
    """Return a new key, which nothing keeps, and its entry: it expires after so many days, has those toolsets, or all.

    Raises pydantic.ValidationError: user or name is empty or too long, or a toolset is unknown.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    expires = now + timedelta(days=days) if days is not None else None
    entry = {"name": name, "user": user, "hash": hash_key(key), "expires": expires, "tools": tools}
    return key, KeyEntry.model_validate(entry | {"created": now.replace(microsecond=0)})


def read_keys(path: Path) -> KeyFile:
    """Return the keys of a file. Raises StartError: it can't be read or is no key file; says nothing of its content."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        message = f"The key file {path} can't be read: {error.strerror}."
        step = "Make it with: sandpod keys create --user NAME --file FILE"
        raise StartError(ErrorCode.NOT_FOUND, message, next_step=step) from error
    if len(raw) > MAX_FILE:
        message = f"The key file {path} is too large."
        raise StartError(ErrorCode.INVALID_CONTENT, message, next_step="Remove expired keys.")
    try:
        document = yaml.safe_load(raw)
        return KeyFile.model_validate({} if document is None else document)
    except Exception as error:
        # PyYAML raises what its constructors run into: ValueError for a day that is none, KeyError for `!!bool x`.
        step = "Each entry is what `sandpod keys create` prints."
        raise StartError(ErrorCode.INVALID_CONTENT, f"{path} is not a key file.", next_step=step) from error


class KeyVerifier(TokenVerifier):
    """Verifies keys against a file, and reads the file again when it changes.

    While there is no file, every caller is refused: a Secret may be created later, or removed. If the file becomes
    invalid, that is logged and the previously loaded keys stay: a mistake in it must lock nobody out.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._stamp: tuple[int, ...] | None = ()  # no file's, so that the first reload reads it
        self._entries: dict[bytes, KeyEntry] = {}  # by key id
        self.reload()

    def owner_of_key(self, wanted: bytes) -> str | None:
        """Return whom the key of that id stands for; None when there is no such key, or not any more."""
        entry = self._valid(wanted)
        return None if entry is None else _owner(entry.user)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who a key belongs to, or None."""
        if len(token) > MAX_TOKEN:
            return None
        stored = hash_key(token)
        entry = self._valid(key_id(stored))
        if entry is None or entry.hash != stored:
            return None
        expires = int(entry.expires.timestamp()) if entry.expires is not None else None
        # The token's place holds the hash: whatever logs an AccessToken must not log a key.
        user, claims = entry.user, {TOOLS: entry.tools}
        return AccessToken(token=entry.hash, client_id=user, scopes=[], subject=user, expires_at=expires, claims=claims)

    def reload(self) -> None:
        """Read the file again if it has changed; a file that is gone has no keys.

        Raises StartError: it can't be read or is no key file. The keys stay as they were; the next call tries again.
        """
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        keys = read_keys(self._path).keys if stamp is not None else []
        self._entries = {key_id(entry.hash): entry for entry in keys}
        self._stamp = stamp
        if stamp is None:
            logger.warning("there is no key file %s: every caller is refused until there is one", self._path)
        else:
            logger.info("read %d keys from %s", len(keys), self._path)

    def _valid(self, wanted: bytes) -> KeyEntry | None:
        entry = self._entries.get(wanted)
        if entry is None or (entry.expires is not None and entry.expires <= datetime.now(UTC)):
            return None
        return entry

    def _read_stamp(self) -> tuple[int, ...] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return 0, 0, 0  # it exists; reading it will say what is wrong
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


@dataclass(frozen=True, slots=True)
class Maker:
    """Who makes a link: the owner, and the id of the API key that was used."""

    owner: str
    key_id: bytes


def current_maker() -> Maker:
    """Return the caller of the request that is being answered, with the key that it came with."""
    token = get_access_token()
    return Maker(owner_of(token), LOCAL_KEY_ID if token is None else key_id(token.token))


def current_owner() -> str:
    """Return the caller of the request that is being answered: the key's user, or the one local caller.

    A server with keys answers 401 before any tool is reached, so no token here means a server without keys.
    """
    return owner_of(get_access_token())


def owner_of(token: AccessToken | SdkToken | None) -> str:
    """Return the owner that a checked token stands for."""
    return LOCAL_OWNER if token is None else _owner(token.subject)


def owner_in(scope: Scope) -> str | None:
    """Return whose request it is, or None for one whose key will be refused, and for what is no request."""
    if scope["type"] != "http":
        return None
    user = scope.get("user")
    if user is None:
        return LOCAL_OWNER
    return owner_of(user.access_token) if isinstance(user, AuthenticatedUser) else None


def _owner(user: str | None) -> str:
    return f"user:{user}"
