"""Renders the chart with helm, as tests want to look at it: plain objects, or the sentence of a refusal.

It needs helm on the PATH and no cluster. Each set of values is rendered once for all tests of a process.
"""

import subprocess
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
CHART: Final = ROOT / "charts" / "sandpod"
# The chart asks for a Kubernetes version; without a cluster, helm takes the one that it was built with.
KUBERNETES: Final = ("--kube-version", "1.34.0")

Manifest = dict[str, Any]


@cache
def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm and return what it said."""
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False, timeout=60)


def template(*arguments: str, release: str = "sandpod", namespace: str = "sandpod") -> str:
    """Return what helm renders of a release."""
    done = helm("template", release, str(CHART), "--namespace", namespace, *KUBERNETES, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _sets(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def render(*values: str, files: tuple[Path, ...] = ()) -> list[Manifest]:
    """Return all objects of the chart.

    Args:
        values: As `--set` takes them: "gateway.replicas=3".
        files: Files of values.
    """
    printed = template(*_sets(values), *(part for file in files for part in ("--values", str(file))))
    return deepcopy(_parsed(printed))


@cache
def _parsed(printed: str) -> list[Manifest]:
    return [manifest for manifest in yaml.load_all(printed, yaml.CSafeLoader) if manifest]


def refusal(*values: str) -> str:
    """Return what helm says of values that it must not take."""
    done = helm("template", "sandpod", str(CHART), "--namespace", "sandpod", *KUBERNETES, *_sets(values))
    assert done.returncode != 0, "helm took the values"
    return done.stderr


def only(manifests: list[Manifest], kind: str, name: str, namespace: str | None = None) -> Manifest:
    """Return the one object of that kind and name."""
    found = [
        m
        for m in manifests
        if m["kind"] == kind and m["metadata"]["name"] == name and namespace in {None, m["metadata"].get("namespace")}
    ]
    assert len(found) == 1, f"{len(found)} objects {kind} {name}"
    return found[0]


def pod_specs(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the name and the pod spec of everything that makes pods."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest["spec"]
        elif "template" in manifest.get("spec", {}):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]
