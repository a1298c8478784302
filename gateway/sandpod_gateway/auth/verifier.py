"""Checks the credential of each request."""

import hmac
import logging
from datetime import UTC, datetime
from typing import Final

from fastmcp.server.auth import AccessToken, TokenVerifier

from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile, hash_key, key_id
from sandpod_gateway.auth.callers import Caller, owner_of
from sandpod_gateway.auth.current import CallerToken

logger = logging.getLogger(__name__)

MAX_KEY: Final = 256  # characters; longer ones are not hashed
MAX_TRIED: Final = 64  # keys of one owner that a signature is looked for among
RESOURCE_PATH: Final = "/mcp"  # of the server, which tokens are for


class Keys:
    """The API keys that are accepted now. Without any, every caller is refused."""

    def __init__(self) -> None:
        self._entries: dict[bytes, KeyEntry] = {}  # by key id

    def use(self, keys: KeyFile) -> None:
        """Accept these keys from now on, and no others."""
        self._entries = {key_id(entry.hash): entry for entry in keys.keys}
        if self._entries:
            logger.info("%d API keys are in use", len(self._entries))
        else:
            logger.warning("there are no API keys: every caller is refused")

    def entries(self) -> list[KeyEntry]:
        """Return the keys, those that have expired among them."""
        return list(self._entries.values())

    def owner_of_key(self, wanted: bytes) -> str | None:
        """Return whom the key of that id stands for; None when there is no such key, or not any more."""
        caller = self.caller_of_key(wanted)
        return None if caller is None else caller.owner

    def caller_of_key(self, wanted: bytes) -> Caller | None:
        """Return the caller whom the key of that id stands for; None when there is no such key, or not any more."""
        entry = self._valid(wanted)
        return None if entry is None else entry.caller()

    def of_owner(self, owner: str) -> list[tuple[Caller, int | None]]:
        """Return the callers of an owner's newest keys, with the ends of these keys."""
        now, found = datetime.now(UTC), list[tuple[Caller, int | None]]()
        for entry in reversed(self._entries.values()):
            if len(found) < MAX_TRIED and owner_of(entry.tenant or "", entry.user) == owner and entry.is_valid(now):
                found.append((entry.caller(), _seconds(entry.expires)))
        return found

    def verify(self, token: str) -> CallerToken | None:
        """Return who a key belongs to, or None."""
        if len(token) > MAX_KEY:
            return None
        stored = hash_key(token)
        entry = self._valid(key_id(stored))
        if entry is None or not hmac.compare_digest(entry.hash, stored):
            return None
        return CallerToken(
            token=entry.hash,
            client_id=entry.user,
            scopes=[],
            expires_at=_seconds(entry.expires),
            caller=entry.caller(),
        )

    def _valid(self, wanted: bytes) -> KeyEntry | None:
        entry = self._entries.get(wanted)
        return entry if entry is not None and entry.is_valid(datetime.now(UTC)) else None


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


class Verifier(TokenVerifier):
    """Checks what a request comes with: an API key."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(required_scopes=[])
        self._keys = keys

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who calls, or None."""
        return self._keys.verify(token)
