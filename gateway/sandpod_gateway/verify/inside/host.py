"""Looks for things of the machine that the server knows to be there."""

import os

from sandpod_gateway.verify.inside.tools import arguments, attempt, tell, text_of


def main() -> None:
    """Tell which are seen."""
    wanted = arguments()
    name = wanted["variable"]
    pids = [each for each in os.listdir("/proc") if each.isdecimal()]
    tell(
        {
            "paths": [path for path in wanted["paths"] if os.path.lexists(path)],
            "variable": name in os.environ,
            "variables": [pid for pid in pids if name in text_of("/proc/%s/environ" % pid)],
            "process": attempt(os.kill, wanted["pid"], 0),
            "processes": len(pids),
        }
    )


main()
