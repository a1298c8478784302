"""What a plan can ask for: a few kinds of writes, each whole, so that carrying them out takes no decision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final, Literal

from sandpod_api.fields import ObjectMeta
from sandpod_kube.resources import SANDBOXES, Key, Resource

_AT_ONCE: Final = 8  # requests


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object; with `may_exist` it may exist already."""

    resource: Resource
    manifest: dict[str, Any]
    may_exist: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object say what the manifest says, whatever it said before (server-side apply, forced)."""

    resource: Resource
    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Change:
    resource: Resource
    metadata: ObjectMeta  # as it was seen

    @property
    def key(self) -> Key:
        """The object's key."""
        return Key(self.resource.kind, self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class Delete(_Change):
    """Delete exactly that object, and with `unchanged` only in that version: a claimed sandbox has another one."""

    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class PatchStatus(_Change):
    """Write a status; None removes a field."""

    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Emit(_Change):
    """Post an Event, which `kubectl describe` shows."""

    reason: str
    message: str
    kind: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class Resize(_Change):
    """Change the requests of a pod's container in place."""

    container: str
    requests: dict[str, str]


@dataclass(frozen=True, slots=True)
class Patch(_Change):
    """Change fields of a spec, or labels, of the object in exactly that version: any later use has created another."""

    spec: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def change(self) -> dict[str, Any]:
        """The merge patch."""
        labels = {"labels": self.labels} if self.labels else {}
        spec = {"spec": self.spec} if self.spec else {}
        return {"metadata": {"resourceVersion": self.metadata.resource_version, **labels}, **spec}


Action = Create | Apply | Delete | PatchStatus | Patch | Resize | Emit


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to do now, in that order, and when to look again at the latest (None: when something happens)."""

    actions: tuple[Action, ...] = ()
    due: datetime | None = None

    def batches(self) -> Iterator[Sequence[Action]]:
        """Return the actions in order; new Sandboxes some at a time, since none of them needs another."""
        for many, group in groupby(self.actions, lambda a: isinstance(a, Create) and a.resource is SANDBOXES):
            left = list(group)
            size = _AT_ONCE if many else 1
            yield from (left[start : start + size] for start in range(0, len(left), size))
