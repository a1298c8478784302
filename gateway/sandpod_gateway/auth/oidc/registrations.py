"""Clients that register with the gateway.

A registration is kept nowhere: the client's id is the registration itself, sealed. So registering costs no room, and
nobody can fill it up.
"""

import json
import zlib
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from fastmcp.server.auth.oauth_proxy.models import ProxyDCRClient
from mcp.server.auth.provider import RegistrationError

MAX_CLIENT_ID: Final = 2000  # characters; it stands in addresses
_KEPT: Final = {"redirect_uris", "grant_types", "scope", "application_type", "client_name"}  # of a registration


class Registrations:
    """In place of a store of clients: gives each an id that holds its registration."""

    def __init__(self) -> None:
        """Have no client before `use`."""
        self._cipher: Fernet | None = None
        self._new: dict[str | None, ProxyDCRClient] = {}  # by the id that they would have had

    def use(self, key: bytes) -> None:
        """Seal with that key from now on."""
        self._cipher = Fernet(key)

    async def put(self, key: str, value: ProxyDCRClient) -> None:
        """Take a client for `sealed`."""
        self._new[key] = value

    def sealed(self, key: str | None) -> str:
        """Return the id of the client that was put just now. Raises RegistrationError: it is too large."""
        content = self._new.pop(key).model_dump_json(include=_KEPT, exclude_none=True)
        if self._cipher is None:
            raise RuntimeError("the key of sign-ins is not known yet")
        made = self._cipher.encrypt(zlib.compress(content.encode())).decode()
        if len(made) > MAX_CLIENT_ID:
            raise RegistrationError("invalid_client_metadata", "The registration is too large: use fewer addresses.")
        return made

    async def get(self, key: str) -> ProxyDCRClient | None:
        """Return the client with that id."""
        if self._cipher is None or len(key) > MAX_CLIENT_ID:
            return None
        try:
            fields = json.loads(zlib.decompress(self._cipher.decrypt(key)))
        except InvalidToken:
            return None
        return ProxyDCRClient.model_validate(fields | {"client_id": key, "token_endpoint_auth_method": "none"})
