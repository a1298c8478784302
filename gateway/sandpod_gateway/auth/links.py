"""Links to one file of one sandbox that work without a key until they expire, and the secrets that sign them.

A link is a path and a token of 43 characters: which secret signed it, when it ends, which API key made it, and a
message authentication code (HMAC-SHA256, cut to 128 bits as RFC 2104 allows) over these, the owner, the method, the
sandbox and the path. What the URL says anyway is not repeated in the token; nothing is stored. The maker's key is
looked up whenever a link is used: a link ends with the key that made it.

The secrets are nothing but random bytes, sign nothing but links and the tokens of `sandbox_tokens`, and are replaced
with age; other uses have keys that are derived from them. They are in a store: a Kubernetes Secret that all gateways of
one installation share, or this process's memory. Whichever gateway finds it empty or its newest secret too old changes
it, by a test-and-set; the others read what it wrote.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Protocol
from urllib.parse import quote

from pydantic import Field, ValidationError

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.auth.callers import KEY_ID_BYTES, TOKEN_KEY_ID, Caller
from sandpod_gateway.errors import SandpodError

POLL_SECONDS: Final = 30.0  # between two looks at the store
LEAD: Final = 300
"""Seconds from a new secret to its first use, by when every gateway has read it: ten looks, and clocks that differ."""
ROTATE: Final = 7 * DAY  # age, in seconds, at which a secret gets a successor
RETIRE: Final = LEAD + DAY  # seconds from a successor to a secret's end: the longest link that it signed has ended then
SECRET_BYTES: Final = 32
ID_BYTES: Final = 4
MAX_KEYS: Final = 16
MAX_TRIES: Final = 5  # lost races for the store; each is lost to a gateway that did the work

Method = Literal["get", "put", "archive"]

_PURPOSE: Final = "sandpod link 1"  # in every code, so that a code of another form or version is never one of these
# The secret's id, the end in seconds since 1970, the id of the maker's key.
_CLAIMS: Final = struct.Struct(f">{ID_BYTES}sI{KEY_ID_BYTES}s")
_MAC_BYTES: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class LinkKey(StrictModel):
    """One secret."""

    id: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    secret: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$", repr=False)]
    created: Annotated[int, Field(ge=0, le=2**32)]  # seconds since 1970


class _KeySet(StrictModel):
    """What a store holds, as JSON."""

    keys: Annotated[tuple[LinkKey, ...], Field(max_length=MAX_KEYS)] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store holds: the content, and the version by which a change of it is noticed."""

    content: bytes = field(repr=False)
    version: str


class SecretStore(Protocol):
    """Where secrets are kept. Its methods raise `SandpodError` (backend_unavailable or backend_error)."""

    async def read(self) -> Stored | None:
        """Return what is there, perhaps nothing yet; None when there is no place for it."""

    async def replace(self, content: bytes, version: str) -> bool:
        """Write, unless it is not that version any more. Return whether it was written."""


@dataclass(eq=False)
class MemoryStore:
    """The store of a gateway that shares its links with no other: they end with it."""

    _stored: Stored = Stored(b"", "0")

    async def read(self) -> Stored | None:
        """Return what was written."""
        return self._stored

    async def replace(self, content: bytes, version: str) -> bool:
        """Write, unless it is not that version any more."""
        if version != self._stored.version:
            return False
        self._stored = Stored(content, str(int(version) + 1))
        return True


@dataclass(eq=False)
class Links:
    """Makes and checks links, with the secrets as this gateway knows them."""

    store: SecretStore
    owner_of_key: Callable[[bytes], str | None]  # whom an API key stands for, by its id; None when it is not valid
    clock: Callable[[], float] = time.time  # seconds since 1970
    _keys: tuple[LinkKey, ...] = ()

    async def refresh(self) -> None:
        """Read the store; make a secret where there is none, and a new one when the newest is too old.

        Raises SandpodError: backend_unavailable or backend_error. What was read before stays in use when the store
        can't be read, and is dropped when the store is gone.
        """
        for _ in range(MAX_TRIES):
            stored = await self.store.read()
            if stored is None:
                self._keys = ()
                message = "There is no Secret for the keys of links, so links are not made or accepted."
                step = "Create the empty Secret that the chart has for it."
                raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)
            keys = _parse(stored.content)
            wanted = renewed(keys, int(self.clock()))
            content = _KeySet(keys=wanted).model_dump_json().encode()
            if wanted == keys or await self.store.replace(content, stored.version):
                self._keys = wanted
                return
        message = "The keys of links were changed by others again and again."
        step = "Look for what else writes to their Secret."
        raise SandpodError(ErrorCode.BACKEND_ERROR, message, next_step=step)

    def make(self, maker: Caller, method: Method, sandbox: str, path: str, *, seconds: int) -> tuple[str, int]:
        """Return a link that lives for so many seconds, from the first slash on, and its end, in seconds since 1970.

        The path is relative to the workspace; for all of it as an archive, the archive's format. Raises as `signing`.
        """
        end = int(self.clock()) + seconds
        token = _sign(self.signing(), end, maker, (method, sandbox, path))
        of = quote(sandbox, safe="")
        where = f"archives/{of}.{path}" if method == "archive" else f"files/{of}/{quote(path, safe='/')}"
        return f"/{where}?token={token}", end

    def owner(self, token: str, method: Method, sandbox: str, path: str, holder: str | None = None) -> str | None:
        """Return for whom a token acts that was made for exactly this; None when it is not valid, or not any more.

        `holder` is whose the sandbox is. A maker who signed in elsewhere has no key that could be looked up.
        """
        if _TOKEN.fullmatch(token) is None:
            return None
        key_id, end, maker_id = _CLAIMS.unpack(base64.urlsafe_b64decode(token + "=")[: _CLAIMS.size])
        owner = holder if maker_id == TOKEN_KEY_ID else self.owner_of_key(maker_id)
        key = next((key for key in self.in_force() if key.id == key_id.hex()), None)
        if key is None or owner is None or self.clock() >= end:
            return None
        expected = _sign(key, end, Caller(owner, maker_id), (method, sandbox, path))
        return owner if hmac.compare_digest(token, expected) else None

    def in_force(self) -> tuple[LinkKey, ...]:
        """Return the secrets whose signatures are accepted now, oldest first."""
        return _in_force(self._keys, int(self.clock()))

    def sealing(self, purpose: bytes) -> tuple[str, bytes]:
        """Return a key of 32 bytes for another purpose, and the id to find it by. Raises as `signing`.

        It can be found for a day at least.
        """
        key = self.signing()
        return key.id, _derived(key, purpose)

    def opening(self, purpose: bytes, key_id: str) -> bytes | None:
        """Return the key of that id for a purpose; None when it is not in force any more."""
        in_force = _in_force(self._keys, int(self.clock()))
        return next((_derived(key, purpose) for key in in_force if key.id == key_id), None)

    def signing(self) -> LinkKey:
        """Return the newest secret that every gateway has read. Raises SandpodError (backend_unavailable): none is."""
        if not self._keys:
            step = "Use read_file and write_file, and tell the administrator: the gateway's log has the reason."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "Links can't be made now.", next_step=step)
        now = self.clock()
        return next((key for key in reversed(self._keys) if key.created + LEAD <= now), self._keys[0])


def maker_id(token: str) -> bytes:
    """Return the id of the key that made a link, from the token of one that is valid."""
    found: bytes = _CLAIMS.unpack(base64.urlsafe_b64decode(token + "=")[: _CLAIMS.size])[2]
    return found


def renewed(keys: Sequence[LinkKey], now: int) -> tuple[LinkKey, ...]:
    """Return what a store is to hold: the secrets in force, oldest first, and a new one when one is due."""
    kept = _in_force(sorted(keys, key=lambda key: (key.created, key.id)), now)
    if kept and now < kept[-1].created + ROTATE:
        return kept
    return (*kept, LinkKey(id=secrets.token_hex(ID_BYTES), secret=secrets.token_hex(SECRET_BYTES), created=now))


def _derived(key: LinkKey, purpose: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key.secret), purpose, hashlib.sha256)


def _in_force(keys: Sequence[LinkKey], now: int) -> tuple[LinkKey, ...]:
    ends = (*(successor.created + RETIRE for successor in keys[1:]), now + 1)
    return tuple(key for key, end in zip(keys, ends, strict=False) if now < end)


def _parse(content: bytes) -> tuple[LinkKey, ...]:
    try:
        return _KeySet.model_validate_json(content or b"{}").keys
    except ValidationError:
        message = "The Secret for the keys of links holds something else; the keys read before stay in use."
        step = "Empty the Secret: the gateway makes new keys, and links made before end."
        # Without the cause: it quotes what was read.
        raise SandpodError(ErrorCode.BACKEND_ERROR, message, next_step=step) from None


def _sign(key: LinkKey, end: int, maker: Caller, what: tuple[Method, str, str]) -> str:
    claims = _CLAIMS.pack(bytes.fromhex(key.id), end, maker.key_id)
    # A JSON array of strings: no two different lists of parts read the same.
    message = json.dumps([_PURPOSE, claims.hex(), maker.owner, *what]).encode()
    code = hmac.digest(bytes.fromhex(key.secret), message, hashlib.sha256)[:_MAC_BYTES]
    return base64.urlsafe_b64encode(claims + code).rstrip(b"=").decode()
