"""Which user a sandbox's processes are, as the host sees them.

Called by `local.py`. It is pure: the caller reads the process's own uid map. A gateway that is no root keeps its own
user for all sandboxes, which the kernel still counts apart, since each has a user namespace.
"""

from typing import Final

FIRST: Final = 1_879_048_192
LAST: Final = 2_147_483_647
"""Uids that systemd's list of ranges (systemd.io/UIDS-GIDS) gives to nobody."""
_FEWEST: Final = 1024
"""Uids that a container must have for its upper half to be taken as nobody's."""


def unused_uids(uid: int, uid_map: str) -> range | None:
    """Return the uids that sandboxes can drop to, or None when the gateway must keep its own.

    Args:
        uid: The gateway's own.
        uid_map: What /proc/self/uid_map says: ranges that exist here, as inside, outside and count.
    """
    if uid != 0:
        return None
    here = [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    for mapped in here:
        if FIRST in mapped and LAST in mapped:
            return range(FIRST, LAST + 1)
    widest = max(here, key=len, default=range(0))
    if len(widest) < _FEWEST:
        return None
    return widest[len(widest) // 2 :]
