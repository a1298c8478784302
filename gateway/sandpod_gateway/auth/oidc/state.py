"""What a sign-in through the gateway leaves until its end, for all gateways of an installation.

Three kinds of facts: sign-ins that have begun, codes that wait for their exchange, and the provider's tokens by the
token that a client has. They are kept in a few places of bounded size, which all gateways reach: Kubernetes Secrets,
or this process's memory. Each entry is sealed with a key that every gateway has, and bound to its name and its end, so
that whoever can write the place can neither read nor exchange nor revive any.

Anybody can begin a sign-in, so what has begun has a share of its own in each place: too many of them drop the oldest
of them, and never a user who has signed in.
"""

import hashlib
import json
import logging
import secrets
import struct
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastmcp.server.auth import TokenVerificationError
from key_value.aio.stores.base import BaseStore, ManagedEntry

from sandpod_api.fields import DAY
from sandpod_gateway.auth.oidc.places import StatePlaces
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)

MAX_SECONDS: Final = 90 * DAY  # that an entry is kept: a client that was not used for so long signs in anew
MAX_ENTRY: Final = 64 * 1024  # bytes of an entry, sealed
MAX_BEGUN: Final = 128 * 1024  # bytes in one place of sign-ins that have begun
MAX_SIGNED_IN: Final = 640 * 1024  # bytes in one place of all else; Kubernetes bounds a Secret at 1 MiB
_BEGUN: Final = {"mcp-oauth-transactions", "mcp-consent-csrf-tokens"}  # FastMCP's names of what anybody can make
_BEGUN_PREFIX: Final = "b."
_HEAD: Final = struct.Struct(">II")  # an entry's end and its making, seconds since 1970
_NONCE_BYTES: Final = 12  # of AES-GCM


class SignInState(BaseStore):
    """FastMCP's key-value store over such places."""

    def __init__(self, places: StatePlaces, clock: Callable[[], float] = time.time) -> None:
        """Read and write nothing before `use`."""
        super().__init__(stable_api=True)
        self._places = places
        self._clock = clock
        self._cipher: AESGCM | None = None

    def use(self, key: bytes) -> None:
        """Seal and open entries with that key of 32 bytes from now on; those of another key are as if not there."""
        self._cipher = AESGCM(key)

    async def _get_managed_entry(self, *, collection: str, key: str) -> ManagedEntry | None:
        name, place = self._find(collection, key)
        try:
            entry = (await self._places.read(place)).get(name)
        except SandpodError as error:  # FastMCP takes any other error for a token that is not valid
            raise TokenVerificationError(error.message) from error
        return None if entry is None or _end(entry) <= self._clock() else self._opened(name, entry)

    async def _put_managed_entry(self, *, collection: str, key: str, managed_entry: ManagedEntry) -> None:
        name, place = self._find(collection, key)
        entry = self._sealed(name, managed_entry)
        held = {each: kept for each, kept in (await self._places.read(place)).items() if each != name}
        dropped = _surplus(held, name, len(entry), self._clock())
        await self._places.change(place, {name: entry, **dict.fromkeys(dropped)})

    async def _delete_managed_entry(self, *, collection: str, key: str) -> bool:
        name, place = self._find(collection, key)
        there = name in await self._places.read(place)
        if there:
            await self._places.change(place, {name: None})
        return there

    def _find(self, collection: str, key: str) -> tuple[str, int]:
        digest = hashlib.sha256(f"{collection}\0{key}".encode()).hexdigest()  # keys are codes and hashes of tokens
        name = f"{_BEGUN_PREFIX if collection in _BEGUN else 's.'}{digest}"
        return name, int(digest[:8], 16) % self._places.count

    def _sealed(self, name: str, entry: ManagedEntry) -> bytes:
        now = self._clock()
        end = min(entry.expires_at.timestamp(), now + MAX_SECONDS) if entry.expires_at else now + MAX_SECONDS
        head, nonce = _HEAD.pack(int(end), int(now)), secrets.token_bytes(_NONCE_BYTES)
        content = zlib.compress(json.dumps(dict(entry.value)).encode())
        sealed = head + nonce + self._key().encrypt(nonce, content, name.encode() + head)
        if len(sealed) > MAX_ENTRY:
            raise ValueError("the provider's tokens are too large to be kept")
        return sealed

    def _opened(self, name: str, entry: bytes) -> ManagedEntry | None:
        head, rest = entry[: _HEAD.size], entry[_HEAD.size :]
        try:
            content = self._key().decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], name.encode() + head)
        except (InvalidTag, ValueError):
            return None
        value: dict[str, Any] = json.loads(zlib.decompress(content))
        return ManagedEntry(value=value, expires_at=datetime.fromtimestamp(_end(entry), UTC))

    def _key(self) -> AESGCM:
        if self._cipher is None:
            raise RuntimeError("the key of sign-ins is not known yet")
        return self._cipher


def _surplus(held: dict[str, bytes], name: str, size: int, now: float) -> list[str]:
    """Return which entries go when one of that name and size comes: those that ended, and the oldest of its share."""
    ended = [each for each, entry in held.items() if _end(entry) <= now]
    begun = name.startswith(_BEGUN_PREFIX)
    share = [each for each in held.keys() - set(ended) if each.startswith(_BEGUN_PREFIX) == begun]
    room = (MAX_BEGUN if begun else MAX_SIGNED_IN) - size - sum(len(held[each]) for each in share)
    oldest = []
    for each in sorted(share, key=lambda each: _HEAD.unpack(held[each][: _HEAD.size])[1]):
        if room >= 0:
            break
        oldest.append(each)
        room += len(held[each])
    if oldest and not begun:
        logger.warning("%d users have to sign in anew: there is no room for more", len(oldest))
    return ended + oldest


def _end(entry: bytes) -> int:
    """Return when an entry ends, seconds since 1970; 0 for what is no entry."""
    return int(_HEAD.unpack(entry[: _HEAD.size])[0]) if len(entry) > _HEAD.size else 0
