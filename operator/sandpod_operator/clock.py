"""The time, in one place, so that tests can give another. Called by what composes the operator."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the time with its zone."""
    return datetime.now(UTC)
