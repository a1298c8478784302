"""Signing in at a provider, where the gateway leads users to it: the console is one more of the gateway's clients.

It registers as any other does, with an id that holds its registration, and gets a token of the gateway's. What it has
to know when the user comes back is in a cookie, so that any gateway can go on.
"""

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from http import HTTPStatus
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from uuid import uuid4

from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Scope

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.auth.oidc.proxied import CONSOLE_BACK
from sandpod_gateway.console.session import SECONDS, Sessions
from sandpod_gateway.console.sign_in import local_path
from sandpod_gateway.console.views import Views
from sandpod_gateway.errors import SandpodError

if TYPE_CHECKING:
    from sandpod_gateway.auth.oidc.proxy import SignIn

NAME: Final = "Sandpod console"
_MAX_ERROR: Final = 64  # characters of a provider's error
_AGAIN: Final = "Sign in again."


@dataclass(frozen=True, slots=True)
class ProviderPages:
    """To the provider, and back."""

    views: Views
    sessions: Sessions
    auth: "SignIn"
    token: ASGIApp  # the endpoint where clients exchange their codes

    async def leave(self, request: Request) -> Response:
        """Lead the user to the provider. Raises SandpodError (backend_unavailable): nobody can sign in now."""
        await self.auth.check_ready()
        verifier, state, back = token_urlsafe(48), token_urlsafe(24), f"{self.sessions.public_url}{CONSOLE_BACK}"
        client = OAuthClientInformationFull(
            client_id=str(uuid4()),
            client_name=NAME,
            redirect_uris=[AnyUrl(back)],
            token_endpoint_auth_method="none",  # noqa: S106 - it has no secret
        )
        await self.auth.register_client(client)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": back,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        answer = RedirectResponse(f"/authorize?{urlencode(query)}", HTTPStatus.SEE_OTHER)
        begun = {"client_id": client.client_id, "verifier": verifier, "state": state, "redirect_uri": back}
        following = local_path(request.query_params.get("next", ""))
        self.sessions.keep(answer, request.scope, json.dumps({**begun, "next": following}))
        return answer

    async def back(self, request: Request) -> Response:
        """Begin a session for the user who comes back. Raises SandpodError: unauthorized, forbidden."""
        query, begun = request.query_params, json.loads(self.sessions.kept(request.scope) or "{}")
        if not hmac.compare_digest(query.get("state", "").encode(), begun.get("state", "-").encode()):
            message = "This sign-in was not begun in this browser, or it took too long."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=_AGAIN)
        if "code" not in query:
            message = f"You were not signed in: {query.get('error', 'no code')[:_MAX_ERROR]}."
            raise SandpodError(ErrorCode.UNAUTHORIZED, message, next_step=_AGAIN)
        form = {
            "grant_type": "authorization_code",
            "code": query["code"],
            "client_id": begun["client_id"],
            "redirect_uri": begun["redirect_uri"],
            "code_verifier": begun["verifier"],
        }
        given = await _posted(self.token, request.scope, urlencode(form).encode())
        try:
            caller = await self.auth.verify_token(str(given.get("access_token", "")))
        except RefusedError as refused:
            raise refused.error from refused
        if caller is None:
            message = "You were not signed in: the sign-in has ended, or you have no place here."
            raise SandpodError(ErrorCode.UNAUTHORIZED, message, next_step=_AGAIN)
        # A page in between: the session is not sent with what another site's page leads to.
        answer = self.views.answer(request, "signed_in.html", {"next": begun["next"]}, signed_in=False)
        self.sessions.keep(answer, request.scope, "")
        self.sessions.begin(answer, request.scope, given["access_token"], int(given.get("expires_in") or SECONDS))
        return answer


async def _posted(app: ASGIApp, scope: Scope, body: bytes) -> dict[str, Any]:
    """Return the JSON with which an endpoint answers a form, as if the client of a request had sent it."""
    headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"content-length", str(len(body)).encode())]
    where = {"method": "POST", "path": "/token", "raw_path": b"/token", "root_path": "", "query_string": b""}
    answered = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        answered.extend(message.get("body", b""))

    await app({**scope, **where, "headers": headers}, receive, send)
    given: dict[str, Any] = json.loads(answered)
    return given
