"""Which API keys a server accepts, and how that changed, for the audit log.

Who changed them can't be seen from here.
"""

import hashlib
from typing import Any, Final

from sandpod_gateway.auth.api_keys import KeyEntry, KeyFile

MAX_NAMED: Final = 100  # keys that are named in one record; their number is always there


class KeyChanges:
    """Compares the keys with those before."""

    def __init__(self) -> None:
        self._known: dict[str, KeyEntry] | None = None

    def facts(self, keys: KeyFile) -> dict[str, Any] | None:
        """Return what changed since the last call, and at the first one what there is; None where nothing changed."""
        known, entries = self._known, {entry.id: entry for entry in keys.keys}
        self._known = entries
        ids = hashlib.sha256(" ".join(sorted(entries)).encode()).hexdigest()
        facts: dict[str, Any] = {"keys": len(entries), "keys_sha256": ids}
        if known is None:
            return facts
        common = entries.keys() & known.keys()
        changes = {
            "keys_added": [entries[each] for each in entries.keys() - known.keys()],
            "keys_removed": [known[each] for each in known.keys() - entries.keys()],
            "keys_changed": [entries[each] for each in common if entries[each] != known[each]],
        }
        for name, found in changes.items():
            if found:
                facts[name] = [_named(entry) for entry in sorted(found, key=lambda entry: entry.id)[:MAX_NAMED]]
                facts[f"{name}_count"] = len(found)
        return facts if any(changes.values()) else None


def _named(entry: KeyEntry) -> dict[str, str]:
    return {"id": entry.id, "user": entry.user, "name": entry.name}
