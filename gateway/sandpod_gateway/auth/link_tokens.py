"""Links to one file of one sandbox that work without a key until they expire.

A link is a path and a token of 43 characters: which secret signed it, when it ends, which API key made it, and a
message authentication code (HMAC-SHA256, cut to 128 bits as RFC 2104 allows) over these, the owner, the method, the
sandbox and the path. What the URL says anyway is not repeated in the token; nothing is stored.

The maker's key is looked up whenever a link is used: a link ends with the key that made it.
"""

import base64
import hashlib
import hmac
import json
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from sandpod_gateway.auth.api_keys import KEY_ID_BYTES, Maker
from sandpod_gateway.auth.link_keys import ID_BYTES, LinkKey, LinkKeys

Method = Literal["get", "put", "archive"]

_PURPOSE: Final = "sandpod link 1"
"""Goes into every code, so that a code of another form or version is never one of these."""
_CLAIMS: Final = struct.Struct(f">{ID_BYTES}sI{KEY_ID_BYTES}s")
"""The secret's id, the end in seconds since 1970, the id of the maker's key."""
_MAC_BYTES: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Links:
    """Makes and checks links."""

    keys: LinkKeys
    owner_of_key: Callable[[bytes], str | None]  # whom an API key stands for, by its id; None when it is not valid
    clock: Callable[[], float] = time.time  # seconds since 1970

    def make(self, maker: Maker, method: Method, sandbox: str, path: str, *, seconds: int) -> tuple[str, int]:
        """Return a link that lives for so many seconds, from the first slash on, and its end, in seconds since 1970.

        The path is relative to the workspace; empty for the whole of it.

        Raises:
            SandpodError: backend_unavailable: there is no secret to sign with.
        """
        end = int(self.clock()) + seconds
        token = _sign(self.keys.signing(), end, maker, (method, sandbox, path))
        of = quote(sandbox, safe="")
        where = f"archives/{of}.tar.gz" if method == "archive" else f"files/{of}/{quote(path, safe='/')}"
        return f"/{where}?token={token}", end

    def owner(self, token: str, method: Method, sandbox: str, path: str) -> str | None:
        """Return for whom a token acts that was made for exactly this; None when it is not valid, or not any more."""
        if _TOKEN.fullmatch(token) is None:
            return None
        claims = base64.urlsafe_b64decode(token + "=")[: _CLAIMS.size]
        key_id, end, maker_id = _CLAIMS.unpack(claims)
        key, owner = self.keys.find(key_id.hex()), self.owner_of_key(maker_id)
        if key is None or owner is None or self.clock() >= end:
            return None
        expected = _sign(key, end, Maker(owner, maker_id), (method, sandbox, path))
        return owner if hmac.compare_digest(token, expected) else None


def _sign(key: LinkKey, end: int, maker: Maker, what: tuple[Method, str, str]) -> str:
    claims = _CLAIMS.pack(bytes.fromhex(key.id), end, maker.key_id)
    # A JSON array of strings: no two different lists of parts read the same.
    message = json.dumps([_PURPOSE, claims.hex(), maker.owner, *what]).encode()
    code = hmac.digest(bytes.fromhex(key.secret), message, hashlib.sha256)[:_MAC_BYTES]
    return base64.urlsafe_b64encode(claims + code).rstrip(b"=").decode()
