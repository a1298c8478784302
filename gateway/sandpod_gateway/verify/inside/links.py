"""Leaves links in the workspace that lead out of it, for the files of the sandbox to be read by."""

import os

from sandpod_gateway.verify.inside.tools import attempt, tell

LINKS = {
    "to-passwd": "/etc/passwd",
    "to-environment": "/proc/1/environ",
    "to-root": "/",
    "up": "../../../../etc/passwd",
    "round": "/proc/self/root/etc/passwd",
}


def main() -> None:
    """Make them."""
    os.makedirs("sandpod-verify", exist_ok=True)
    made = {}
    for name, target in LINKS.items():
        path = "sandpod-verify/" + name
        attempt(os.unlink, path)
        made[path] = attempt(os.symlink, target, path)
    tell({"made": made})


main()
