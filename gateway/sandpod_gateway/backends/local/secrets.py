"""Secrets of local sandboxes: what sessions were given, in memory, and what the settings name."""

import asyncio
import os
from dataclasses import dataclass, field

from sandpod_gateway.backends.local.settings import LocalSecret
from sandpod_gateway.secrets.values import MAX_VALUE, Secret, resolved


@dataclass(frozen=True, slots=True)
class LocalSecrets:
    """Implements `secrets.values.SecretSource`."""

    sources: tuple[LocalSecret, ...]
    given: dict[str, tuple[Secret, ...]] = field(default_factory=dict, init=False, repr=False)  # by sandbox

    async def of_session(self, sandbox: str) -> tuple[Secret, ...]:
        """Return what was given with a sandbox."""
        return self.given.get(sandbox, ())

    async def of_claim(self, _: str) -> tuple[Secret, ...]:
        """Return nothing: there are no Secrets that a claim could refer to."""
        return ()

    async def of_template(self, _: str) -> tuple[Secret, ...]:
        """Return what the settings name: there is one template."""
        return tuple([await _read(source) for source in self.sources])


async def _read(source: LocalSecret) -> Secret:
    if source.file is None:
        data = os.environb.get((source.env or "").encode())
    else:
        data = await asyncio.to_thread(_content, source.file)
    return resolved(Secret.limited(source.name, source.tools, source.languages), data)


def _content(path: os.PathLike[str]) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path that the settings name
            return file.read(MAX_VALUE + 3)  # with a line break at its end, and one byte that shows it to be too long
    except OSError:
        return None
