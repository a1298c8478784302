"""Whether what a caller came with still means what it did, for answers that go on for long."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from fastmcp.server.auth import AuthProvider
from starlette.requests import Request

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import Caller
from sandpod_gateway.auth.current import CallerToken, current_caller, current_expiry
from sandpod_gateway.auth.oidc.claims import RefusedError
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.rest.requests import key_needed

SECONDS: Final = 10.0  # between two looks


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Checks the credential of a request again."""

    auth: AuthProvider | None
    credential: str
    caller: Caller
    expires: datetime | None

    @classmethod
    def of(cls, auth: AuthProvider | None, request: Request) -> Self:
        """Take what there is now, while the request is answered."""
        credential = request.headers.get("authorization", "").partition(" ")[2]
        return cls(auth, credential, current_caller(), current_expiry())

    async def check(self) -> None:
        """Raise SandpodError where the credential has ended, or is another caller's now or one with other rights."""
        if self.auth is None:
            return
        try:
            found = await self.auth.verify_token(self.credential)
        except RefusedError as refused:
            # A provider that is down ends nothing before its time.
            is_down = refused.error.code == ErrorCode.BACKEND_UNAVAILABLE
            if is_down and (self.expires is None or datetime.now(UTC) < self.expires):
                return
            raise refused.error from refused
        if not isinstance(found, CallerToken):
            raise key_needed()
        if found.caller != self.caller:
            message = "The rights of your API key or token have changed."
            raise SandpodError(ErrorCode.UNAUTHORIZED, message, next_step="Connect again with it.")

    async def until_changed(self) -> None:
        """Check it now and then. Raises as `check` does."""
        while True:
            await asyncio.sleep(SECONDS)
            await self.check()
