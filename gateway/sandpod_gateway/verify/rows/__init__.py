"""The registry: every row, and the pure judgement of what was seen for it."""

from typing import Final

from sandpod_gateway.verify.model import Row
from sandpod_gateway.verify.rows import (
    admission,
    escapes,
    files,
    identity,
    limits,
    network,
    pods,
    rights,
    syscalls,
    tenants,
)

ROWS: Final[tuple[Row, ...]] = (
    *identity.ROWS,
    *files.ROWS,
    *network.ROWS,
    *syscalls.ROWS,
    *limits.ROWS,
    *escapes.ROWS,
    *pods.ROWS,
    *admission.ROWS,
    *rights.ROWS,
    *tenants.ROWS,
)
"""All rows, in the order of the report."""
