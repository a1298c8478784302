"""Records what is done by links, and counts requests that are refused before they become a call."""

from dataclasses import dataclass
from http import HTTPStatus

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
                self.log.refused(**{"from": client_of(scope), "user": user, "status": message["status"]})
            await send(message)

        return send_on


@dataclass(frozen=True, slots=True)
class LinkAudit:
    """Records one request by a link, once its answer says whose link it is; one that nobody made is counted."""

    app: ASGIApp
    log: AuditLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        size, act = {"in": 0, "out": 0}, Act("link", {"from": client_of(scope), "key": "link"}, known=False)
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
            self.log.refused(**{"from": act.facts["from"], "status": act.facts.get("status")})


def client_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    return str((scope.get("client") or ("unknown", 0))[0])
