"""Whether a sandbox has its own kernel: what it reports of the one that it sees, compared with the node's.

A boot id is made anew at each start of a kernel, so two that are the same are one kernel. Where a sandbox reports none
(some versions of gVisor show none of their own) the kernel's release decides.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_api.conditions import Reason
from sandpod_operator.model.observed import Kernel
from sandpod_operator.status.failures import Cause, cause, clean


class _Seen(BaseModel):
    """What a sandbox reports: untrusted."""

    model_config = ConfigDict(extra="ignore", strict=True)

    boot_id: Annotated[str, Field(max_length=256)]
    release: Annotated[str, Field(min_length=1, max_length=256)]


def compare(reported: str, node: Kernel | None) -> tuple[bool | None, Cause]:
    """Return whether the sandbox has its own kernel, None if that is not known, and why.

    Args:
        reported: What the sandbox reported; empty while it has not.
        node: The node's kernel; None while nobody has looked.
    """
    if node is not None and not all(node):
        return None, Cause(Reason.NODE_UNKNOWN, "The operator may not read nodes, so kernels are not compared.")
    if node is None or not reported:
        return None, cause(Reason.PROBE_PENDING)
    try:
        seen = _Seen.model_validate_json(reported)
    except ValidationError:
        return False, cause(Reason.KERNEL_SHARED, "its report of its kernel is invalid.")
    if seen.boot_id == node.boot_id if seen.boot_id else seen.release == node.release:
        return False, cause(Reason.KERNEL_SHARED, f"{node.release}{', by its boot id' if seen.boot_id else ''}.")
    return True, Cause(Reason.PROBED, clean(f"The sandbox sees kernel {seen.release}, its node runs {node.release}."))
