"""Where gateways keep what sign-ins through them leave: a few places of bounded size."""

from dataclasses import dataclass, field
from typing import Final, Protocol

PLACES: Final = 16  # in memory


class StatePlaces(Protocol):
    """Where entries are kept, by place and name. Its methods raise `SandpodError`."""

    count: int  # places

    async def read(self, place: int) -> dict[str, bytes]:
        """Return the entries of a place."""

    async def change(self, place: int, entries: dict[str, bytes | None]) -> None:
        """Write these entries of a place, and remove those that are None."""


@dataclass(eq=False)
class MemoryPlaces:
    """The places of a gateway that shares its sign-ins with no other: they end with it."""

    count: int = PLACES
    _places: dict[int, dict[str, bytes]] = field(default_factory=dict)

    async def read(self, place: int) -> dict[str, bytes]:
        """Return the entries of a place."""
        return dict(self._places.get(place, {}))

    async def change(self, place: int, entries: dict[str, bytes | None]) -> None:
        """Write these entries of a place, and remove those that are None."""
        whole = self._places.get(place, {}) | entries
        self._places[place] = {name: entry for name, entry in whole.items() if entry is not None}
