"""Answers that go on for long: what a caller came with is checked again, and each counts until its last byte."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.callers import LOCAL, Caller
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.oidc.answers import unavailable
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.limits import Requests
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.rest.key_check import KeyCheck
from sandpod_gateway.rest.terminal import RestTerminals
from sandpod_gateway.rest.terminal_client import TerminalClient

ANN = Caller("user:ann", b"12345678")
SOON, PAST = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, -1))
HOMELESS = RefusedError(SandpodError(ErrorCode.FORBIDDEN, "No group leads to a tenant.", next_step="Ask."))


class Auth:
    """One that says what the test says."""

    def __init__(self, says: Caller | RefusedError | None) -> None:
        self.says = says

    async def verify_token(self, token: str) -> CallerToken | None:
        if isinstance(self.says, RefusedError):
            raise self.says
        return None if self.says is None else CallerToken(token=token, client_id="", scopes=[], caller=self.says)


@pytest.mark.parametrize(
    ("says", "expires", "code"),
    [
        (ANN, None, None),
        (None, None, "unauthorized"),
        (replace(ANN, read_only=True), None, "unauthorized"),
        (replace(ANN, templates=("small",)), None, "unauthorized"),
        (replace(ANN, tenant="other"), None, "unauthorized"),
        (HOMELESS, SOON, "forbidden"),
        (unavailable("who you are"), None, None),
        (unavailable("who you are"), SOON, None),
        (unavailable("who you are"), PAST, "backend_unavailable"),
    ],
)
async def test_what_has_other_rights_ends_and_a_provider_that_is_down_ends_nothing_before_its_time(
    says: Caller | RefusedError | None, expires: datetime | None, code: str | None
) -> None:
    async def checked() -> str | None:
        try:
            await KeyCheck(cast("Any", Auth(says)), "token", ANN, expires).check()
        except SandpodError as error:
            return error.code
        return None

    assert await checked() == code


def request() -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})


async def test_a_terminal_counts_until_its_last_message_is_sent() -> None:
    sending, read = asyncio.Event(), asyncio.Event()

    class Socket:
        """One to a client that reads late."""

        async def accept(self) -> None:
            pass

        async def send_text(self, _: str) -> None:
            sending.set()
            await read.wait()

        async def close(self, _: int) -> None:
            pass

    requests = Requests(per_owner=1, metrics=Metrics())
    audit = AuditLog(AuditSettings(), Metrics(), "1")
    terminals = RestTerminals(cast("Any", None), requests, audit, None, frozenset())
    serving = terminals._serve(request(), cast("Any", Socket()), {}, cast("Any", None), cast("Any", None))
    task = asyncio.create_task(serving)
    await asyncio.wait_for(sending.wait(), 60)
    with pytest.raises(SandpodError):
        requests.enter(LOCAL.owner)
    read.set()
    await asyncio.wait_for(task, 60)
    requests.enter(LOCAL.owner)


async def test_a_client_that_has_left_is_no_error() -> None:
    class Socket:
        async def send_text(self, _: str) -> None:
            raise RuntimeError  # as what is closed already does

    output = SimpleNamespace(sent=0)
    terminal = SimpleNamespace(name="term-1", output=output, channel=SimpleNamespace(received=0))
    client = TerminalClient(cast("Any", Socket()), cast("Any", terminal), cast("Any", None))
    assert (await client.serve(cast("Any", None)), client.stays) == (None, True)
