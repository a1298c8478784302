"""The secrets of sandboxes as their calls need them: read once, prepared for masking, kept for a while.

What a session was given never changes. What a claim or a template refers to is read again every half minute, in the
background, so that no call waits for it but the first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Final

from cachetools import LRUCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.backends.tenants import qualified
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import current_call
from sandpod_gateway.masking.masker import Masker
from sandpod_gateway.secrets.values import Secret, SecretSource, bounded

logger = logging.getLogger(__name__)

MAX_PLACES: Final = 512  # templates and claims that refer to secrets
MAX_SANDBOXES: Final = 512  # whose secrets are kept prepared; those of others are read again


@dataclass(frozen=True)
class SecretSet:
    """The secrets of one sandbox; of those with one name the session's counts, then the claim's."""

    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    from_template: tuple[Secret, ...] = field(default=(), repr=False)  # as they were read, to see whether they changed
    from_claim: tuple[Secret, ...] = field(default=(), repr=False)  # as above
    from_session: tuple[Secret, ...] = field(default=(), repr=False)

    @cached_property
    def masker(self) -> Masker | None:
        """What hides all values in what comes from the sandbox; None where there are none."""
        everything = (*self.from_session, *self.from_claim, *self.from_template)
        values = [(each.name, each.value) for each in everything if each.value and each.masked]
        return Masker(values) if values else None

    def env(self, tool: str, language: str) -> dict[str, str]:
        """Return the variables of a run. Raises not_found: one of them has no value."""
        mine = [secret for secret in self.secrets if secret.is_for(tool, language)]
        for secret in mine:
            if secret.problem:
                whose = "sandbox's template" if secret in self.from_template else "sandbox"
                message = f"The secret {secret.name} of the {whose} {secret.problem}."
                step = "Ask the administrator to correct it; runs that do not get it work."
                raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        return {secret.name: secret.value for secret in mine}


NONE: Final = SecretSet()


_Key = str | tuple[str, datetime]  # a template's name, or a sandbox's with the time of its claim
_Reader = Callable[[], Awaitable[tuple[Secret, ...] | None]]


@dataclass(slots=True)
class _Place:
    read: _Reader
    secrets: tuple[Secret, ...]
    used: bool = True  # since they were read last


class Secrets:
    """The secrets of all sandboxes that this gateway has used lately."""

    def __init__(self, source: SecretSource) -> None:
        self._source = source
        self._places: LRUCache[_Key, _Place] = LRUCache(MAX_PLACES)
        self._given: LRUCache[tuple[str, datetime], tuple[Secret, ...]] = LRUCache(MAX_SANDBOXES)  # until they are used
        self._sets: LRUCache[tuple[str, datetime], SecretSet] = LRUCache(MAX_SANDBOXES)  # a later one may have the name

    async def of(self, record: SandboxRecord) -> SecretSet:
        """Return a sandbox's secrets; what the call that is being answered shows is masked from here on.

        Raises backend_unavailable: they can't be read, so that nothing of the sandbox may be shown.
        """
        template = qualified(record.owner, record.template)
        from_template = await self._read(template, partial(self._source.of_template, template))
        which = record.name, record.created
        from_claim = await self._of_claim(record)
        if not record.has_secrets and not from_template and not from_claim:
            return NONE
        found = self._sets.get(which)
        if found is None or found.from_template is not from_template or found.from_claim is not from_claim:
            session = await self._of_session(record) if found is None else found.from_session
            secrets = {each.name: each for each in (*from_template, *from_claim, *session)}
            found = SecretSet(tuple(secrets.values()), from_template, from_claim, session)
            await asyncio.to_thread(lambda: found.masker)
            self._sets[which] = found
        maskers = current_call().maskers
        if found.masker is not None and found.masker not in maskers:
            maskers.append(found.masker)
        return found

    def claimed(self, record: SandboxRecord, given: tuple[Secret, ...]) -> None:
        """Learn what a sandbox was claimed with just now, which then need not be read."""
        if record.has_secrets:
            self._given[record.name, record.created] = tuple(each for each in given if each.reference is None)

    async def confirm(self, record: SandboxRecord, given: tuple[Secret, ...]) -> None:
        """Raise invalid_argument if an earlier claim of a sandbox came with other secrets than those given now."""
        if not given:
            return
        kept = (*await self._of_session(record), *await self._of_claim(record))
        if {each.name: _as_given(each) for each in kept} != {each.name: each for each in given}:
            message = "You have a sandbox of that name already, and it was made with other secrets or with none."
            step = "Leave `secrets` out, use another name, or close that sandbox first."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)

    async def _of_session(self, record: SandboxRecord) -> tuple[Secret, ...]:
        if not record.has_secrets:
            return ()
        given = self._given.pop((record.name, record.created), None)
        return await self._source.of_session(record.name) if given is None else given

    async def _of_claim(self, record: SandboxRecord) -> tuple[Secret, ...]:
        if not record.refers_to_secrets:
            return ()
        return await self._read((record.name, record.created), partial(self._source.of_claim, record.name))

    async def _read(self, place: _Key, read: _Reader) -> tuple[Secret, ...]:
        known = self._places.get(place)
        if known is None:
            secrets = bounded(await read() or ())
            known = self._places.setdefault(place, _Place(read, secrets))
        known.used = True
        return known.secrets

    async def reread(self) -> None:
        """Read again what templates and claims refer to, of those used lately; what can't be read stays as it is."""
        for place, known in list(self._places.items()):
            if not known.used:
                self._places.pop(place, None)
                continue
            known.used = False
            try:
                secrets = await known.read()
            except SandpodError as error:
                logger.warning("the secrets of %s can't be read again: %s", place, error)
            else:
                if secrets is not None and bounded(secrets) != known.secrets:
                    known.secrets = bounded(secrets)


def _as_given(secret: Secret) -> Secret:
    return secret if secret.reference is None else replace(secret, value="", problem="")
