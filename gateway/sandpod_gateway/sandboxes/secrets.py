"""The secrets of sandboxes as their calls need them: read once, prepared for masking, kept for a while.

What a session was given never changes. A template's secrets are read again every half minute, in the background, so
that no call waits for them but the first.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.backends.tenants import qualified
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import current_call
from sandpod_gateway.masking.masker import Masker
from sandpod_gateway.secrets.values import Secret, SecretSource, bounded

if TYPE_CHECKING:
    from datetime import datetime

logger = logging.getLogger(__name__)

MAX_TEMPLATES: Final = 256
MAX_SANDBOXES: Final = 512  # whose secrets are kept prepared; those of others are read again


@dataclass(frozen=True)
class SecretSet:
    """The secrets of one sandbox; of those with one name the session's counts."""

    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    from_template: tuple[Secret, ...] = field(default=(), repr=False)  # as they were read, to see whether they changed
    from_session: tuple[Secret, ...] = field(default=(), repr=False)

    @cached_property
    def masker(self) -> Masker | None:
        """What hides all values in what comes from the sandbox; None where there are none."""
        given = (*self.from_session, *self.from_template)
        values = [(each.name, each.value) for each in given if each.value and each.masked]
        return Masker(values) if values else None

    def env(self, tool: str, language: str) -> dict[str, str]:
        """Return the variables of a run. Raises not_found: one of them has no value."""
        mine = [secret for secret in self.secrets if secret.is_for(tool, language)]
        for secret in mine:
            if secret.problem:
                message = f"The secret {secret.name} of the sandbox's template {secret.problem}."
                step = "Ask the administrator to correct it; runs that do not get it work."
                raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        return {secret.name: secret.value for secret in mine}


NONE: Final = SecretSet()


@dataclass(slots=True)
class _Template:
    secrets: tuple[Secret, ...]
    used: bool = True  # since they were read last


class Secrets:
    """The secrets of all sandboxes that this gateway has used lately."""

    def __init__(self, source: SecretSource) -> None:
        self._source = source
        self._templates: LRUCache[str, _Template] = LRUCache(MAX_TEMPLATES)
        self._sets: LRUCache[tuple[str, datetime], SecretSet] = LRUCache(MAX_SANDBOXES)  # a later one may have the name

    async def of(self, record: SandboxRecord) -> SecretSet:
        """Return a sandbox's secrets; what the call that is being answered shows is masked from here on.

        Raises backend_unavailable: they can't be read, so that nothing of the sandbox may be shown.
        """
        from_template = await self._of_template(qualified(record.owner, record.template))
        if not record.has_secrets and not from_template:
            return NONE
        which = record.name, record.created
        found = self._sets.get(which)
        if found is None or found.from_template is not from_template:
            session = await self._of_session(record) if found is None else found.from_session
            names = {secret.name for secret in session}
            secrets = (*session, *(each for each in from_template if each.name not in names))
            found = SecretSet(secrets=secrets, from_template=from_template, from_session=session)
            await asyncio.to_thread(lambda: found.masker)
            self._sets[which] = found
        maskers = current_call().maskers
        if found.masker is not None and found.masker not in maskers:
            maskers.append(found.masker)
        return found

    async def confirm(self, record: SandboxRecord, given: tuple[Secret, ...]) -> None:
        """Raise invalid_argument if a sandbox was claimed before, and with other secrets than those given now."""
        if not given:
            return
        kept = await self._of_session(record)
        if {each.name: each for each in kept} != {each.name: each for each in given}:
            message = "You have a sandbox of that name already, and it was made with other secrets or with none."
            step = "Leave `secrets` out, use another name, or close that sandbox first."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)

    async def _of_session(self, record: SandboxRecord) -> tuple[Secret, ...]:
        return await self._source.of_session(record.name) if record.has_secrets else ()

    async def _of_template(self, name: str) -> tuple[Secret, ...]:
        known = self._templates.get(name)
        if known is None:
            secrets = bounded(await self._source.of_template(name) or ())
            known = self._templates.setdefault(name, _Template(secrets))
        known.used = True
        return known.secrets

    async def reread(self) -> None:
        """Read the secrets of templates again that were used lately; where that fails they stay as they are."""
        for name, known in list(self._templates.items()):
            if not known.used:
                self._templates.pop(name, None)
                continue
            known.used = False
            try:
                secrets = await self._source.of_template(name)
            except SandpodError as error:
                logger.warning("the secrets of template %s can't be read again: %s", name, error)
            else:
                if secrets is not None and bounded(secrets) != known.secrets:
                    known.secrets = bounded(secrets)
