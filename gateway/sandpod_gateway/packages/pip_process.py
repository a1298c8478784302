"""Runs pip with limits, for another Python than this one. Started by `pip.py` as a program; never imported.

pip asks its own Python for what conditions of dependencies (`python_version < "3.12"`) depend on, whatever Python it
is told to download for: the answers are put right here.
"""

import json
import resource
import sys

limits, markers = json.loads(sys.argv[1])
for _name, _value in limits.items():
    resource.setrlimit(getattr(resource, _name), (_value, _value))

from pip._internal.cli.main import main  # noqa: E402 - after the limits
from pip._vendor.packaging import markers as _markers  # noqa: E402 - as above

_own = _markers.default_environment
_markers.default_environment = lambda: {**_own(), **markers}  # type: ignore[assignment, return-value, unused-ignore]

sys.exit(main(sys.argv[2:]))
