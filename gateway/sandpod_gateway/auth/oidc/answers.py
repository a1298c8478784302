"""Answers of the provider about tokens, each remembered for some seconds, and a question for each asked once."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from cachetools import TTLCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.oidc.claims import RefusedError, used_claims
from sandpod_gateway.auth.oidc.provider import UNREACHABLE, Provider, logger
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.errors import SandpodError

MAX_ANSWERS: Final = 10_000  # of the newest tokens
_Answer = TypeVar("_Answer")


class Answers(Generic[_Answer]):
    """Remembers answers by token. Calls at once for one token share one question."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep each answer for so many seconds."""
        self._asked: TTLCache[bytes, asyncio.Task[_Answer]] = TTLCache(MAX_ANSWERS, seconds, clock)

    async def get(self, token: str, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Return the answer for a token. Raises what `ask` raises, which is not remembered."""
        name = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        task = self._asked.get(name)
        if task is None:

            async def answered() -> _Answer:
                return await ask()

            task = self._asked[name] = asyncio.create_task(answered())
        try:
            return await asyncio.shield(task)  # for others it goes on when this call is cancelled
        except Exception:
            self._asked.pop(name, None)
            raise

    def clear(self) -> None:
        """Forget everything."""
        self._asked.clear()


class Introspection:
    """Asks the provider whether tokens are still valid (RFC 7662)."""

    def __init__(self, settings: OidcSettings, provider: Provider, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask as `settings.introspection` says; without that, every token is valid."""
        self._settings = settings.introspection
        self._provider = provider
        seconds = self._settings.remember_seconds if self._settings else 0
        self._answers = Answers[dict[str, Any] | None](seconds, clock)
        self._names = used_claims(settings)

    async def is_active(self, token: str) -> bool:
        """Return whether a token was not revoked. Raises RefusedError (backend_unavailable): nobody can say."""
        return self._settings is None or bool(await self._answer(token))

    async def claims(self, token: str) -> dict[str, Any]:
        """Return what the provider says of a token that need not be a JWT; nothing of one that is not active.

        Raises RefusedError (backend_unavailable): nobody can say.
        """
        return await self._answer(token) if self._settings is not None and self._settings.opaque else {}

    async def _answer(self, token: str) -> dict[str, Any]:
        answer = await self._answers.get(token, lambda: self._ask(token))
        if answer is None:
            raise unavailable("whether your token is still valid")
        return answer

    async def _ask(self, token: str) -> dict[str, Any] | None:
        endpoint = self._settings.endpoint if self._settings else None
        if endpoint is None:
            endpoint = (await self._provider.configuration() or {}).get("introspection_endpoint")
        try:
            answer: dict[str, Any] = await self._provider.post(str(endpoint), {"token": token})
        except UNREACHABLE as error:
            logger.warning("tokens can't be checked at the provider: %s: %s", type(error).__name__, error)
            return None
        active = answer.get("active") is True
        return {name: answer[name] for name in self._names & answer.keys()} if active else {}


def unavailable(what: str) -> RefusedError:
    """Return the refusal of a caller of whom the provider has to be asked, and can't be."""
    message = f"The provider where users sign in can't be asked {what}."
    step = "Try again in a moment, or use an API key."
    return RefusedError(SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step))
