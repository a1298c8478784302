"""Links to one file of one sandbox that work without a key until they expire. Pure; made by tools, checked by routes.

A link is a JSON Web Token (RFC 7519, HS256) beside the path that it stands for. Every gateway that has the same secret
can check it; nothing is stored.
"""

import time
from collections.abc import Callable
from typing import Final, Literal
from urllib.parse import quote

import jwt

Method = Literal["get", "put", "archive"]

_ALGORITHM: Final = "HS256"
_MAX_TOKEN: Final = 16 * 1024
"""Characters; a path of the longest kind has fewer than that."""


class Links:
    """Makes and checks links.

    Args:
        secret: Returns the key of the signatures: at least 32 bytes, the same in all gateways.
        clock: Seconds since 1970.
    """

    def __init__(self, secret: Callable[[], bytes], clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def make(self, method: Method, sandbox: str, path: str, *, seconds: int) -> tuple[str, int]:
        """Return a link, from the first slash on, and when it ends, in seconds since 1970.

        Args:
            method: What it allows: to get the file, to put one there, or to get the whole workspace.
            sandbox: The sandbox.
            path: The file, relative to the workspace; empty for the whole of it.
            seconds: How long it lives.
        """
        end = int(self._clock()) + seconds
        claims = {"method": method, "sandbox": sandbox, "path": path, "exp": end}
        token = jwt.encode(claims, self._secret(), _ALGORITHM)
        where = (
            f"archives/{quote(sandbox, safe='')}.tar.gz"
            if method == "archive"
            else f"files/{quote(sandbox, safe='')}/{quote(path, safe='/')}"
        )
        return f"/{where}?token={token}", end

    def allows(self, token: str, method: Method, sandbox: str, path: str) -> bool:
        """Tell whether a token was made here for exactly this, and has not expired."""
        if len(token) > _MAX_TOKEN:
            return False
        try:
            claims = jwt.decode(token, self._secret(), [_ALGORITHM], options={"require": ["exp"], "verify_exp": False})
        except jwt.InvalidTokenError:
            return False
        wanted = {"method": method, "sandbox": sandbox, "path": path}
        return (
            isinstance(claims["exp"], int)
            and self._clock() < claims["exp"]
            and claims == {**wanted, "exp": claims["exp"]}
        )
