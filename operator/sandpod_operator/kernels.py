"""Whether a sandbox has a kernel of its own: what it says of the one that it sees, against the node's.

Called by `status.py`. Pure. A boot id is made anew at each start of a kernel, so two that are the same are one kernel.
Where a sandbox has none (gVisor shows none that is its own in every version) the kernel's release decides.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_api.conditions import Reason
from sandpod_operator.causes import Cause, cause, clean


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel of a node. Both are empty where the operator may not look at nodes.

    Attributes:
        boot_id: Its boot id.
        release: As `uname -r` says it.
    """

    boot_id: str = ""
    release: str = ""

    @classmethod
    def of_node(cls, manifest: dict[str, Any]) -> Self:
        """Return a node's."""
        info = (manifest.get("status") or {}).get("nodeInfo") or {}
        return cls(str(info.get("bootID", "")), str(info.get("kernelVersion", "")))

    @property
    def known(self) -> bool:
        """Whether there is anything to compare with."""
        return bool(self.boot_id and self.release)


class _Seen(BaseModel):
    """What a sandbox says: untrusted."""

    model_config = ConfigDict(extra="ignore", strict=True)

    boot_id: Annotated[str, Field(max_length=256)]
    release: Annotated[str, Field(min_length=1, max_length=256)]


def compare(told: str, node: Kernel | None) -> tuple[bool | None, Cause]:
    """Return whether the sandbox has a kernel of its own, None where that is not known, and why.

    Args:
        told: What the sandbox said; empty while it has said nothing.
        node: The node's kernel; None while nobody has looked.
    """
    if node is not None and not node.known:
        return None, Cause(Reason.NODE_UNKNOWN, "The operator may not look at nodes, so nothing is compared.")
    if node is None or not told:
        return None, cause(Reason.PROBE_PENDING)
    try:
        seen = _Seen.model_validate_json(told)
    except ValidationError:
        return False, cause(Reason.KERNEL_SHARED, "what it says of its kernel makes no sense.")
    shared = seen.boot_id == node.boot_id if seen.boot_id else seen.release == node.release
    if shared:
        return False, cause(Reason.KERNEL_SHARED, f"{node.release}{', by its boot id' if seen.boot_id else ''}.")
    return True, Cause(Reason.PROBED, clean(f"The sandbox sees kernel {seen.release}, its node runs {node.release}."))
