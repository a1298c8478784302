"""Where a profile's key is: in the system's keyring where there is one, else in the profile file."""

from collections.abc import Mapping
from typing import Any, Final

_SERVICE: Final = "sandpod"
IN_KEYRING: Final = "keyring"  # field of a profile whose key is there


def stored_key(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return the key of a profile."""
    if entry.get(IN_KEYRING):
        try:
            import keyring  # noqa: PLC0415 - an optional extra

            found: str | None = keyring.get_password(_SERVICE, name)
        except Exception:  # noqa: BLE001 - a backend of the keyring may raise anything
            return None
        return found
    key = entry.get("key")
    return str(key) if key else None


def store_key(name: str, key: str) -> dict[str, Any]:
    """Keep a profile's key; return the fields of the profile that say where."""
    try:
        import keyring  # noqa: PLC0415

        keyring.set_password(_SERVICE, name, key)
    except Exception:  # noqa: BLE001 - not installed, locked, or without a backend
        return {"key": key}
    return {IN_KEYRING: True}
