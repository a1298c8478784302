"""A sandbox's record as callers see it."""

from datetime import UTC, datetime
from typing import Any, Final

from sandpod_api.base import rfc3339
from sandpod_gateway.api.results import SandboxInfo
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.sandboxes.service import Sandboxes

_AS_RECORDED: Final = ("status", "reason", "message", "template", "image", "network", "persistent")


def info_of(record: SandboxRecord, sandboxes: Sandboxes) -> SandboxInfo:
    """Return what a sandbox's owner sees of it."""
    return SandboxInfo(**fields_of(record, sandboxes))


def fields_of(record: SandboxRecord, sandboxes: Sandboxes) -> dict[str, Any]:
    """Return the fields of a `SandboxInfo`."""
    return {
        "sandbox": record.name,
        "name": record.session or None,
        **{name: getattr(record, name) for name in _AS_RECORDED},
        "created_at": rfc3339(record.created),
        "last_activity_at": rfc3339(record.last_activity) if record.last_activity is not None else None,
        "expires_at": rfc3339(record.expires) if record.expires is not None else None,
        "age_seconds": max(0.0, round((datetime.now(UTC) - record.created).total_seconds(), 3)),
        "running": sandboxes.running(record.name),
    }
