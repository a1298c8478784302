"""Sessions of the console: a cookie that holds a credential, sealed, and the requests that it stands for.

The cookie is sealed with a key that all gateways derive from the secrets of links, so that it works at each of them and
nothing is stored. The credential in it is checked anew with every request, so a session ends with its key.
"""

import base64
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from secrets import token_bytes
from typing import Final
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandpod_gateway.auth.links import ID_BYTES, Links
from sandpod_gateway.http.handshakes import websocket_of

PREFIX: Final = "/console"
SECONDS: Final = 12 * 3600  # until the user signs in anew: less than a secret of links is in force
NAME: Final = "sandpod"
_SECURE_NAME: Final = f"__Host-{NAME}"  # which no other host can set, and no plain HTTP
BEGUN_SECONDS: Final = 600  # for a user to sign in at a provider
_BEGUN_NAME: Final = "-begun"
_PURPOSE: Final = b"sandpod console session 1"
_BEGUN: Final = b"sandpod console sign-in 1"
_HEAD: Final = struct.Struct(f">{ID_BYTES}sI")  # the secret's id, and the end in seconds since 1970
_NONCE_BYTES: Final = 12  # of AES-GCM
_MAX_COOKIE: Final = 4096  # characters, as browsers have it
_PATHS: Final = re.compile(r"/console(?:/.*)?|/api/v1/.*", re.DOTALL)  # where a session is worth something
_SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(eq=False)
class Sessions:
    """Seals credentials into cookies, and opens them; `public_url` is that of the settings."""

    links: Links
    public_url: str | None = None
    clock: Callable[[], float] = time.time  # seconds since 1970

    def sealed(self, credential: str, seconds: int = SECONDS, purpose: bytes = _PURPOSE) -> str:
        """Return the value of a cookie. Raises SandpodError (backend_unavailable): the secrets can't be read."""
        key_id, key = self.links.sealing(purpose)
        head = _HEAD.pack(bytes.fromhex(key_id), int(self.clock()) + min(seconds, SECONDS))
        nonce = token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, credential.encode(), head)
        return base64.urlsafe_b64encode(head + nonce + sealed).rstrip(b"=").decode()

    def opened(self, value: str, purpose: bytes = _PURPOSE) -> str | None:
        """Return the credential in a cookie; None for what is none, or not any more."""
        try:
            raw = base64.b64decode(value[:_MAX_COOKIE] + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
            head, nonce, rest = raw[: _HEAD.size], raw[_HEAD.size :][:_NONCE_BYTES], raw[_HEAD.size + _NONCE_BYTES :]
            key_id, end = _HEAD.unpack(head)
            key = self.links.opening(purpose, key_id.hex())
            if key is None or end <= self.clock():
                return None
            return AESGCM(key).decrypt(nonce, rest, head).decode()
        except (ValueError, struct.error, InvalidTag):
            return None

    def begin(self, response: Response, scope: Scope, credential: str, seconds: int = SECONDS) -> None:
        """Give the browser a session with an answer. Raises as `sealed`."""
        self._set(response, scope, self.sealed(credential, seconds), min(seconds, SECONDS))

    def end(self, response: Response, scope: Scope) -> None:
        """Take the session from the browser with an answer."""
        self._set(response, scope, "", 0)

    def keep(self, response: Response, scope: Scope, text: str) -> None:
        """Have the browser keep what a sign-in has begun with until it comes back from the provider's site."""
        value = self.sealed(text, BEGUN_SECONDS, _BEGUN) if text else ""
        name, secure = self._name(scope) + _BEGUN_NAME, self._is_secure(scope)
        seconds = BEGUN_SECONDS if text else 0
        response.set_cookie(name, value, max_age=seconds, secure=secure, httponly=True, samesite="lax")

    def kept(self, scope: Scope) -> str | None:
        """Return what a sign-in of this browser has begun with."""
        cookie = self.cookie(scope, _BEGUN_NAME)
        return None if cookie is None else self.opened(cookie, _BEGUN)

    def _set(self, response: Response, scope: Scope, value: str, seconds: int) -> None:
        response.set_cookie(
            self._name(scope), value, max_age=seconds, secure=self._is_secure(scope), httponly=True, samesite="strict"
        )

    def cookie(self, scope: Scope, suffix: str = "") -> str | None:
        """Return the value of a request's cookie."""
        jar = SimpleCookie()
        try:
            jar.load(Headers(scope=scope).get("cookie", "")[: 4 * _MAX_COOKIE])
        except CookieError:
            return None
        found = jar.get(self._name(scope) + suffix)
        return None if found is None else found.value

    def _name(self, scope: Scope) -> str:
        return _SECURE_NAME if self._is_secure(scope) else NAME

    def _is_secure(self, scope: Scope) -> bool:
        """Return whether the browser came by TLS, as far as anybody said; a proxy may have kept it to itself."""
        host = Headers(scope=scope).get("host", "")
        return scope["scheme"] == "https" or self.public_url == f"https://{host}"


def is_own(scope: Scope) -> bool:
    """Return whether a request is of one of this server's own pages, or of the user at the address bar.

    What changes something, and WebSockets, need the page's origin: browsers say it, and scripts can't make it up.
    """
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is not None or scope["method"] not in _SAFE or websocket_of(scope) is not None:
        return urlsplit(origin or "").netloc == headers.get("host")
    return headers.get("sec-fetch-site", "none") in {"none", "same-origin"}


@dataclass(frozen=True, slots=True)
class SessionCookies:
    """Lets a session stand for a bearer token in requests of this server's own pages; one of their own goes first."""

    app: ASGIApp
    sessions: Sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http" and _PATHS.fullmatch(scope["path"]) and is_own(scope):
            headers = Headers(scope=scope)
            cookie = None if "authorization" in headers or "x-api-key" in headers else self.sessions.cookie(scope)
            credential = None if cookie is None else self.sessions.opened(cookie)
            if credential is not None:
                bearer = (b"authorization", f"Bearer {credential}".encode("latin-1", "replace"))
                scope = {**scope, "headers": [*scope["headers"], bearer]}
        await self.app(scope, receive, send)
