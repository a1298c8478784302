"""Checks the API key of each request."""

import hmac
import logging
from datetime import UTC, datetime
from typing import Final

from fastmcp.server.auth import AccessToken, TokenVerifier

from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile, hash_key, key_id
from sandpod_gateway.auth.callers import CallerToken

logger = logging.getLogger(__name__)

MAX_TOKEN: Final = 256  # characters; longer ones are not hashed


class KeyVerifier(TokenVerifier):
    """Verifies API keys. Without any, every caller is refused."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[bytes, KeyEntry] = {}  # by key id

    def use(self, keys: KeyFile) -> None:
        """Accept these keys from now on, and no others."""
        self._entries = {key_id(entry.hash): entry for entry in keys.keys}
        if self._entries:
            logger.info("%d API keys are in use", len(self._entries))
        else:
            logger.warning("there are no API keys: every caller is refused")

    def owner_of_key(self, wanted: bytes) -> str | None:
        """Return whom the key of that id stands for; None when there is no such key, or not any more."""
        entry = self._valid(wanted)
        return None if entry is None else entry.caller().owner

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who a key belongs to, or None."""
        if len(token) > MAX_TOKEN:
            return None
        stored = hash_key(token)
        entry = self._valid(key_id(stored))
        if entry is None or not hmac.compare_digest(entry.hash, stored):
            return None
        return CallerToken(
            token=entry.hash,
            client_id=entry.user,
            subject=entry.user,
            scopes=[],
            expires_at=None if entry.expires is None else int(entry.expires.timestamp()),
            caller=entry.caller(),
        )

    def _valid(self, wanted: bytes) -> KeyEntry | None:
        entry = self._entries.get(wanted)
        return entry if entry is not None and entry.is_valid(datetime.now(UTC)) else None
