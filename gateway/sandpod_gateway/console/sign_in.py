"""Signing in with a key, and out."""

from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fastmcp.server.auth import AuthProvider
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.act import Act
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.callers import TOKEN_KEY_ID, facts_of
from sandpod_gateway.auth.current import CallerToken, owner_in
from sandpod_gateway.auth.factory import is_proxied
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.auth.verifier import MAX_KEY
from sandpod_gateway.console.calls import form
from sandpod_gateway.console.session import PREFIX, Sessions
from sandpod_gateway.console.views import Views
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.audit import client_of

if TYPE_CHECKING:
    from sandpod_gateway.auth.oidc.proxy import SignIn

SIGN_IN: Final = "/sign-in"


def local_path(path: str) -> str:
    """Return where to go on to, as a part of an address: a page of the console, whatever was asked for."""
    return quote(path if path.startswith(f"{PREFIX}/") and "\\" not in path else f"{PREFIX}/", safe="/")


@dataclass(frozen=True, slots=True)
class SignInPages:
    """The form, and what it does."""

    views: Views
    sessions: Sessions
    auth: AuthProvider | None
    audit: AuditLog

    async def show(self, request: Request) -> Response:
        """Return the form; nobody needs it on a server without keys."""
        if self.auth is None or owner_in(request.scope) is not None:
            return RedirectResponse(f"{PREFIX}/", HTTPStatus.SEE_OTHER)
        ended = "ended" in request.query_params
        note = "Your session has ended, or its key is not valid any more. Sign in again." if ended else ""
        return self._form(request, request.query_params.get("next", ""), note)

    async def sign_in(self, request: Request) -> Response:
        """Begin a session with a key that is valid."""
        fields = await form(request)
        key, following = fields.get("key", ""), fields.get("next", "")
        valid = key.isascii() and 0 < len(key) <= MAX_KEY
        found = await self.auth.verify_token(key) if self.auth is not None and valid else None
        if not isinstance(found, CallerToken):
            note = "That is no valid key: it may be mistyped, revoked or expired."
            return self._form(request, following, note, HTTPStatus.UNAUTHORIZED)
        answer = RedirectResponse(local_path(following), HTTPStatus.SEE_OTHER)
        facts = {**facts_of(found.caller), "from": client_of(request.scope), "method": "console"}
        async with self.audit.recording(Act("sign_in", facts)):
            await self.audit.begin()
            self._begin(answer, request, key)
        return answer

    def _begin(self, answer: Response, request: Request, key: str) -> None:
        try:
            self.sessions.begin(answer, request.scope, key)
        except SandpodError as error:
            message = "Nobody can sign in yet: the gateways' shared secrets can't be read."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step="Try again in a moment.") from error

    async def sign_out(self, request: Request) -> Response:
        """End the session in this browser."""
        credential = self.sessions.opened(self.sessions.cookie(request.scope) or "")
        if is_proxied(self.auth) and credential is not None:
            with suppress(RefusedError, SandpodError):  # it ends by itself
                await self._revoke(self.auth, credential)
        answer = RedirectResponse(f"{PREFIX}{SIGN_IN}", HTTPStatus.SEE_OTHER)
        self.sessions.end(answer, request.scope)
        answer.headers["Clear-Site-Data"] = '"storage"'
        return answer

    async def _revoke(self, auth: "SignIn", credential: str) -> None:
        """End what a user got at the provider; a key goes on."""
        found = await auth.verify_token(credential)
        if isinstance(found, CallerToken) and found.caller.key_id == TOKEN_KEY_ID:
            await auth.revoke_token(found)

    def _form(self, request: Request, following: str, note: str, status: int = HTTPStatus.OK) -> Response:
        context = {"next": local_path(following), "note": note, "provider": is_proxied(self.auth)}
        return self.views.answer(request, "sign_in.html", context, status=status, signed_in=False)
