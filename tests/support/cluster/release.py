"""Releases of the chart that tests install for themselves, with the images that the cluster has."""

import os
import subprocess
from typing import Any, Final

SMALL: Final = {"cpu": "1", "cpuRequest": "20m", "memory": "512Mi", "memoryRequest": "64Mi"}
"""Resources of a template."""
LITTLE: Final = {"resources": {"requests": {"cpu": "20m"}}}
"""Values for a part that is to have room on a node with two processors, whatever else is there."""


def run(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=400)


def done(*command: str, stdin: str | None = None) -> str:
    """Return what a command prints.

    Raises:
        AssertionError: It failed; has what it said.
    """
    ended = run(*command, stdin=stdin)
    assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"
    return ended.stdout


def image(part: str) -> dict[str, Any]:
    """Return the values for the image of a part."""
    prefix, tag = os.environ.get("IMAGE_PREFIX", "sandpod"), os.environ.get("IMAGE_TAG", "dev")
    return {"image": {"repository": f"{prefix}/{part}", "tag": tag}}


def helm(action: str, namespace: str, *arguments: str) -> str:
    """Install or change the release `sandpod` of a namespace, and return what helm prints once all of it is there."""
    return done("helm", action, "sandpod", *arguments, "--namespace", namespace, "--wait", "--timeout", "5m")


def remove(namespace: str, *spaces: str) -> None:
    """Ask for the end of that release, and of its namespaces, whatever there is of them."""
    run("helm", "uninstall", "sandpod", "--namespace", namespace)
    run("kubectl", "delete", "namespace", namespace, *spaces, "--ignore-not-found", "--wait=false")
