"""API keys: made once, stored hashed, checked for each request. Also where a caller's identity comes from.

The key file is a Secret in a cluster and a plain file elsewhere; it is read again when it changes, so that keys come
and go without a restart. Called by `app.py` and `cli.py`. A key is never logged and never stored.
"""

import asyncio
import hashlib
import logging
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import yaml
from fastmcp.server.auth import AccessToken, TokenVerifier
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.provider import AccessToken as SdkToken
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError

logger = logging.getLogger(__name__)

LOCAL_OWNER: Final = "local"
"""The one caller of a server without keys, which listens on loopback only."""

KEY_PREFIX: Final = "sandpod_"  # so that secret scanners and people know what they see
KEY_BYTES: Final = 32  # 256 random bits: one round of SHA-256 is enough, there is nothing to guess
MAX_FILE: Final = 1024 * 1024  # bytes; Kubernetes bounds a Secret at the same size
MAX_TOKEN: Final = 256  # characters; longer ones are not hashed
POLL_SECONDS: Final = 2.0  # the kubelet itself takes up to a minute to bring a changed Secret


class KeyEntry(BaseModel):
    """One key as it is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=128, description="What the key is for.")]
    user: Annotated[str, Field(min_length=1, max_length=128, description="Whose it is; sandboxes belong to users.")]
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", description="SHA-256 of the key.")]
    created: AwareDatetime
    expires: AwareDatetime | None = None


class KeyFile(BaseModel):
    """The file of keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Annotated[list[KeyEntry], Field(max_length=10_000)] = Field(default_factory=list)


def hash_key(key: str) -> str:
    """Return a key in the form in which it is stored."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def make_key(*, user: str, name: str, days: int | None, now: datetime) -> tuple[str, KeyEntry]:
    """Return a new key, which nothing keeps, and the entry that stands for it.

    Args:
        user: Whose it is.
        name: What it is for.
        days: Days until it expires, or None for never.
        now: The time.

    Raises:
        pydantic.ValidationError: User or name is empty or too long.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    expires = now + timedelta(days=days) if days is not None else None
    entry = KeyEntry(name=name, user=user, hash=hash_key(key), created=now.replace(microsecond=0), expires=expires)
    return key, entry


def read_keys(path: Path) -> KeyFile:
    """Return the keys of a file.

    Raises:
        StartError: The file can't be read or is not a key file; the text says nothing of its content.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise StartError(
                ErrorCode.INVALID_CONTENT, f"The key file {path} is too large.", next_step="Remove expired keys."
            )
        document = yaml.safe_load(raw)
        return KeyFile.model_validate({} if document is None else document)
    except OSError as error:
        raise StartError(
            ErrorCode.NOT_FOUND,
            f"The key file {path} can't be read: {error.strerror}.",
            next_step="Make it with: sandpod keys create --user NAME --file FILE",
        ) from error
    except (yaml.YAMLError, ValidationError) as error:
        raise StartError(
            ErrorCode.INVALID_CONTENT,
            f"{path} is not a key file.",
            next_step="Each entry is what `sandpod keys create` prints.",
        ) from error


class KeyVerifier(TokenVerifier):
    """Knows the keys of a file, and reads it again when it changes.

    While there is no file, there are no keys, and everyone is refused: a Secret may be made later, or taken away. A
    file that went bad is logged, and the keys of before stay: a slip in it must lock nobody out.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._stamp = self._read_stamp()
        self._keys: dict[str, KeyEntry] = {}
        if self._stamp is not None:
            self._keys = self._by_hash(read_keys(path))
        else:
            logger.warning("there is no key file %s yet: every caller is refused until there is one", path)

    def secret(self) -> bytes:
        """Return what only servers with the same keys know, to sign links with; other keys make another one."""
        return hashlib.sha256("\n".join(["sandpod links", *sorted(self._keys)]).encode()).digest()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who a key belongs to, or None."""
        if len(token) > MAX_TOKEN:
            return None
        entry = self._keys.get(hash_key(token))
        if entry is None or (entry.expires is not None and entry.expires <= datetime.now(UTC)):
            return None
        expires = int(entry.expires.timestamp()) if entry.expires is not None else None
        # The token's place holds the hash: whatever logs an AccessToken must not log a key.
        return AccessToken(token=entry.hash, client_id=entry.user, scopes=[], subject=entry.user, expires_at=expires)

    async def follow(self) -> None:
        """Read the file again whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Read the file again if it has changed."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            self._keys = {}
            logger.warning("the key file %s is gone: every caller is refused", self._path)
            return
        try:
            self._keys = self._by_hash(read_keys(self._path))
        except StartError as error:
            logger.error("%s The keys of before stay in force.", error.message)  # noqa: TRY400  # its sentence says all
            return
        logger.info("read %d keys from %s", len(self._keys), self._path)

    @staticmethod
    def _by_hash(file: KeyFile) -> dict[str, KeyEntry]:
        return {entry.hash: entry for entry in file.keys}

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def current_owner() -> str:
    """Return the caller of the request that is being answered: the key's user, or the one local caller.

    A server with keys answers 401 before any tool is reached, so no token here means a server without keys.
    """
    return owner_of(get_access_token())


def owner_of(token: AccessToken | SdkToken | None) -> str:
    """Return whom a checked token stands for."""
    return LOCAL_OWNER if token is None else f"user:{token.subject}"
