"""What kopf keeps about objects for handlers of changes: nothing, for there are none.

Called by kopf, by `handlers.py`'s settings. Its own storages copy each object of each event twice to find out what has
changed, which took a quarter of the operator's processor time (py-spy, 1,000 sandboxes made at once).
"""

from typing import Any

import kopf


class NoDiffs(kopf.DiffBaseStorage):
    """Sees no object as changed."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return that nothing was kept."""

    def store(self, **_: Any) -> None:
        """Keep nothing."""


class NoProgress(kopf.ProgressStorage):
    """Remembers no handler's progress."""

    def fetch(self, **_: Any) -> None:
        """Return that nothing was kept."""

    def store(self, **_: Any) -> None:
        """Keep nothing."""

    def purge(self, **_: Any) -> None:
        """Forget nothing."""

    def touch(self, **_: Any) -> None:
        """Change nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return it as it is."""
        return essence
