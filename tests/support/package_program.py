"""Runs the program that installs wheels in sandboxes as a process of this machine, with a home of its own."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sandpod_gateway.packages.sandbox import BOOTSTRAP, opening


def install_wheels(
    home: Path, wheels: dict[str, bytes], *, python: str = sys.executable, room: int | None = None
) -> dict[str, Any]:
    """Install wheels, and return what the program reports.

    Args:
        home: The folder whose `.local` takes them.
        wheels: Content by name of the package.
        python: The Python that they are installed by and for.
        room: Bytes that all packages may take; None is what the disk has.
    """
    order = [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in wheels.items()
    ]
    done = subprocess.run(
        [python, str(BOOTSTRAP), "wheels"],
        input=b"".join(
            (opening(installing=True), json.dumps({"packages": order, "room": room}).encode(), b"\n", *wheels.values())
        ),
        env={**os.environ, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, Any] = json.loads(base64.b64decode(done.stdout.replace(b".", b"").split()[-1]))
    return report
