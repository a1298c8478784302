"""Reports which kernel the sandbox sees: the operator compares it with the node's own.

Run in a container before the sandbox's, where a RuntimeClass promises another kernel than the node's.
"""

import json
import os

_MESSAGE = "/dev/termination-log"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOST = 256


def tell(path: str = _MESSAGE) -> int:
    """Write what is seen as the container's termination message, JSON: boot_id (empty where there is none), release."""
    try:
        with open(_BOOT_ID, encoding="ascii", errors="replace") as file:
            boot_id = file.read(_MOST).strip()
    except OSError:
        boot_id = ""
    with open(path, "w", encoding="ascii") as file:
        json.dump({"boot_id": boot_id, "release": os.uname().release[:_MOST]}, file)
    return 0
