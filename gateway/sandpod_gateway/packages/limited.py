"""Becomes another program under limits: a JSON of them, then its command line. Started by `npm.py`; never imported."""

import json
import os
import resource
import sys

for _name, _value in json.loads(sys.argv[1]).items():
    resource.setrlimit(getattr(resource, _name), (_value, _value))

os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - that is its task
