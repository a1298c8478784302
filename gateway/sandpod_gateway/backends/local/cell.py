"""What an in-process backend is given: a launcher, and the sandboxes that it starts."""

from typing import Protocol

from sandpod_api.conditions import Reason
from sandpod_gateway.backends.base import ByteStream


class Cell(Protocol):
    """One running sandbox."""

    async def connect(self) -> ByteStream:
        """Open a stream to its runner.

        Raises:
            OSError: It has ended.
        """
        ...

    async def ending(self) -> tuple[Reason, str]:
        """Return why it ended, once it has ended without having been told to."""
        ...

    async def end(self) -> None:
        """End all that runs in it and wait until it is gone. May be called more than once."""
        ...


class Launcher(Protocol):
    """What makes sandboxes. Its errors are `SandpodError`s."""

    @property
    def image(self) -> str | None:
        """What stands for an image: what sandboxes run on, in words."""
        ...

    async def start(self) -> None:
        """Open what it needs, and prove that sandboxes can be had."""
        ...

    async def close(self) -> None:
        """End the sandboxes that wait for a claim."""
        ...

    async def launch(self, *, may_make: bool) -> Cell | None:
        """Return a sandbox whose runner answers, warm or, if it may be made, new. A failure leaves nothing behind."""
        ...

    def waiting(self) -> int:
        """Return how many sandboxes wait for a claim."""
        ...
