"""Records what is done by links and by sign-ins, and counts requests that are refused before they become a call."""

from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpod_gateway.audit.act import Act
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.current import owner_in


@dataclass(frozen=True, slots=True)
class RefusedRequests:
    """Sees the answers to requests that are refused: without a valid credential, too many, too large."""

    log: AuditLog

    def seen(self, scope: Scope, send: Send) -> Send:
        """Return a `send` for this request's answer that counts it where it is a refusal."""
        if not self.log.on:
            return send

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                user = owner_in(scope) if "user" in scope else None
                self.log.counted("refused", **{"from": client_of(scope), "user": user, "status": message["status"]})
            await send(message)

        return send_on


@dataclass(frozen=True, slots=True)
class LinkAudit:
    """Records one request for a file, once its answer says whose it is; one of nobody's is counted."""

    app: ASGIApp
    log: AuditLog
    event: str = "link"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        size, act = {"in": 0, "out": 0}, Act(self.event, {"from": client_of(scope), "key": self.event}, known=False)
        complete = False

        async def receive_on() -> Message:
            message = await receive()
            size["in"] += len(message.get("body", b""))
            return message

        async def send_on(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                act.note(status=message["status"])
            else:
                size["out"] += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        async with self.log.recording(act):
            try:
                await self.app(scope, receive_on, send_on)
                if act.facts.get("status", 0) >= HTTPStatus.BAD_REQUEST:
                    act.note(outcome="refused")
                elif not complete:
                    act.note(outcome="cancelled")
            finally:
                act.note(bytes_in=size["in"], bytes_out=size["out"])
        if not act.known:
            self.log.counted("refused", **{"from": act.facts["from"], "status": act.facts.get("status")})


@dataclass(frozen=True, slots=True)
class SignInAudit:
    """Records what a client does for a user who has signed in; what anybody may do is counted."""

    app: ASGIApp
    log: AuditLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        act = Act("sign_in", {"from": client_of(scope)}, known=False)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                act.note(status=message["status"], outcome="refused" if _refuses(message) else None)
            await send(message)

        async with self.log.recording(act):
            await self.app(scope, receive, send_on)
        if act.known:
            return
        if "outcome" in act.facts:
            facts = {"from": act.facts["from"], "path": scope["path"], "status": act.facts["status"]}
            self.log.counted("refused", **facts)
        elif "method" in act.facts:
            self.log.counted("sign_in", **{"from": act.facts["from"], "method": act.facts["method"]})


def _refuses(answer: Message) -> bool:
    """Return whether an answer is a refusal, to the client or, by way of the browser, at its address."""
    target = urlsplit(Headers(raw=answer["headers"]).get("location", ""))
    return answer["status"] >= HTTPStatus.BAD_REQUEST or "error" in parse_qs(target.query)


def client_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    return str((scope.get("client") or ("unknown", 0))[0])
