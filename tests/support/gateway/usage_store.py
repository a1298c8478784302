"""A store of usage documents that several gateways of one process share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sandpod_gateway.usage.stores import Documents, Stored


@dataclass(eq=False)
class MemoryStore:
    """Documents in memory; implements `DocumentStore`. Each write reaches all who follow before it returns."""

    documents: Documents = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)  # names of documents, one for each write
    _versions: int = 0
    _followers: list[Callable[[Documents], None]] = field(default_factory=list)

    async def read(self) -> Documents:
        return dict(self.documents)

    async def write(self, name: str, content: bytes, version: str | None) -> str | None:
        known = self.documents.get(name)
        if (known.version if known is not None else None) != version:
            return None
        self._versions += 1
        self.documents[name] = Stored(content, str(self._versions))
        self.writes.append(name)
        self._tell()
        return str(self._versions)

    async def delete(self, name: str, version: str) -> None:
        if name in self.documents and self.documents[name].version == version:
            del self.documents[name]
            self._tell()

    async def follow(self, use: Callable[[Documents], None]) -> None:
        self._followers.append(use)
        try:
            use(dict(self.documents))
            await asyncio.get_running_loop().create_future()
        finally:
            self._followers.remove(use)

    def _tell(self) -> None:
        for use in self._followers:
            use(dict(self.documents))
