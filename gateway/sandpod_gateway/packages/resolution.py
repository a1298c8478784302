"""What resolutions of all kinds of packages have in common."""

from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError

KEPT: Final = 256  # resolutions
FRESH: Final = 600.0  # seconds that one is kept for: the index may have newer versions then


class ConflictError(Exception):
    """No set of versions satisfies all that was asked for."""

    def __init__(self, cause: str | None) -> None:
        super().__init__(cause)
        self.cause = cause

    def told(self) -> SandpodError:
        """Return it as callers see it."""
        return SandpodError(
            ErrorCode.INVALID_ARGUMENT,
            "The packages, or what they depend on, ask for versions that exclude each other.",
            cause=self.cause,
            next_step="Ask for fewer or other versions.",
        )
