"""The registry: every row of the report, and the judgement of what was seen for it.

A new promise that is tried gets its row here, by topic. Rows are pure: they make no sandbox, read no cluster and
print nothing.
"""

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
