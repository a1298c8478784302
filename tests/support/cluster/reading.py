"""Reads objects of the cluster of KUBECONFIG through one `kubectl proxy`: a kubectl for each look costs more."""

import atexit
import functools
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

_GROUPS: Final = {
    "daemonsets": "apis/apps/v1",
    "events": "api/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "nodes": "api/v1",
    "persistentvolumeclaims": "api/v1",
    "pods": "api/v1",
    "sandboxes": "apis/sandpod.dev/v1alpha1",
    "sandboxpools": "apis/sandpod.dev/v1alpha1",
    "services": "api/v1",
}


def read(kind: str, namespace: str, name: str = "", *, selector: str = "") -> dict[str, Any]:
    """Return an object, or the list of all that a label selector takes; empty where it is not there."""
    place = "" if kind == "nodes" else f"namespaces/{namespace}/"
    query = urllib.parse.urlencode({"labelSelector": selector})
    try:
        found: dict[str, Any] = json.loads(raw(f"/{_GROUPS[kind]}/{place}{kind}/{name}?{query}"))
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 404:
                raise
        return {}
    return found


def raw(path: str) -> bytes:
    """Return what the API server answers at a path."""
    with urllib.request.urlopen(f"{_proxy()}{path}", timeout=60) as answer:  # noqa: S310 - the proxy's
        said: bytes = answer.read()
        return said


@functools.cache
def _proxy() -> str:
    """Return the address of a proxy that ends with this process."""
    process = subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)

    def end() -> None:
        process.terminate()
        process.communicate()

    atexit.register(end)
    assert process.stdout is not None
    return f"http://{process.stdout.readline().rpartition(' ')[2].strip()}"
