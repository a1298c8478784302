"""The secrets that links are signed with: random, shared by all gateways of one installation, replaced with age.

They stand in a store: a Kubernetes Secret that the gateways share, or this process's memory. Nothing else is ever
signed with them, and they are made of nothing but random bytes. Who changes the store, by a test-and-set, is whichever
gateway finds it empty or its newest secret too old; the others read what it wrote.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import Field, ValidationError

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.errors import SandpodError

POLL_SECONDS: Final = 30.0
"""Pause between two looks at the store."""
LEAD: Final = 300
"""Seconds from a new secret to its first use, by when every gateway has read it: ten looks, and clocks that differ."""
ROTATE: Final = 7 * DAY
"""Age, in seconds, at which a secret gets a successor."""
RETIRE: Final = LEAD + DAY
"""Seconds from a successor to a secret's end: the longest link that it can have signed has ended then."""
SECRET_BYTES: Final = 32
ID_BYTES: Final = 4
MAX_KEYS: Final = 16
MAX_TRIES: Final = 5  # lost races for the store; each is lost to a gateway that did the work


class LinkKey(StrictModel):
    """One secret."""

    id: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    secret: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$", repr=False)]
    created: Annotated[int, Field(ge=0, le=2**32)]
    """Seconds since 1970."""


class _KeySet(StrictModel):
    """What a store holds, as JSON."""

    keys: Annotated[tuple[LinkKey, ...], Field(max_length=MAX_KEYS)] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store holds: the content, and the version by which a change of it is noticed."""

    content: bytes
    version: str


class SecretStore(Protocol):
    """Where secrets are kept. Its methods raise `SandpodError` (backend_unavailable or backend_error)."""

    async def read(self) -> Stored | None:
        """Return what is there, perhaps nothing yet; None when there is no place for it."""

    async def replace(self, content: bytes, version: str) -> bool:
        """Write, unless it is not that version any more. Return whether it was written."""


class MemoryStore:
    """The store of a gateway that shares its links with no other: they end with it."""

    def __init__(self) -> None:
        self._stored = Stored(b"", "0")

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
class LinkKeys:
    """The secrets as this gateway knows them."""

    store: SecretStore
    clock: Callable[[], float] = time.time  # seconds since 1970
    _keys: tuple[LinkKey, ...] = ()

    async def refresh(self) -> None:
        """Read the store; make a secret where there is none, and a new one when the newest is too old.

        What was read before stays in use when the store can't be read, and is dropped when the store is gone.

        Raises:
            SandpodError: backend_unavailable or backend_error.
        """
        for _ in range(MAX_TRIES):
            stored = await self.store.read()
            if stored is None:
                self._keys = ()
                raise SandpodError(
                    ErrorCode.BACKEND_UNAVAILABLE,
                    "There is no Secret for the keys of links, so links are not made or accepted.",
                    next_step="Create the empty Secret that the chart has for it.",
                )
            keys = _parse(stored.content)
            wanted = renewed(keys, int(self.clock()))
            content = _KeySet(keys=wanted).model_dump_json().encode()
            if wanted == keys or await self.store.replace(content, stored.version):
                self._keys = wanted
                return
        raise SandpodError(
            ErrorCode.BACKEND_ERROR,
            "The keys of links were changed by others again and again.",
            next_step="Look for what else writes to their Secret.",
        )

    def signing(self) -> LinkKey:
        """Return the secret to sign with: the newest one that every gateway has read.

        Raises:
            SandpodError: backend_unavailable: there is none.
        """
        if not self._keys:
            raise SandpodError(
                ErrorCode.BACKEND_UNAVAILABLE,
                "Links can't be made now.",
                next_step="Use read_file and write_file, and tell the administrator: the gateway's log has the reason.",
            )
        now = self.clock()
        return next((key for key in reversed(self._keys) if key.created + LEAD <= now), self._keys[0])

    def find(self, key_id: str) -> LinkKey | None:
        """Return the secret of that id, if it is still in force."""
        return next((key for key in _in_force(self._keys, int(self.clock())) if key.id == key_id), None)


def renewed(keys: Sequence[LinkKey], now: int) -> tuple[LinkKey, ...]:
    """Return what a store is to hold: the secrets in force, oldest first, and a new one when one is due."""
    kept = _in_force(sorted(keys, key=lambda key: (key.created, key.id)), now)
    if kept and now < kept[-1].created + ROTATE:
        return kept
    return (*kept, LinkKey(id=secrets.token_hex(ID_BYTES), secret=secrets.token_hex(SECRET_BYTES), created=now))


def _in_force(keys: Sequence[LinkKey], now: int) -> tuple[LinkKey, ...]:
    successors = (*keys[1:], None)
    pairs = zip(keys, successors, strict=False)
    return tuple(key for key, successor in pairs if successor is None or now < successor.created + RETIRE)


def _parse(content: bytes) -> tuple[LinkKey, ...]:
    if not content:
        return ()
    try:
        return _KeySet.model_validate_json(content).keys
    except ValidationError:
        # Without the cause: it quotes what was read.
        raise SandpodError(
            ErrorCode.BACKEND_ERROR,
            "The Secret for the keys of links holds something else; the keys read before stay in use.",
            next_step="Empty the Secret: the gateway makes new keys, and links made before end.",
        ) from None
