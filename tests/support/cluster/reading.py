"""Reads objects of the cluster of KUBECONFIG through one `kubectl proxy`: a kubectl for each look costs more.

Called by `cluster.py`, and by `writing.py` for what is written the same way.
"""

import atexit
import functools
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_CORE: Final = "api/v1"
_OWN: Final = "apis/sandpod.dev/v1alpha1"
_GROUPS: Final = {
    "configmaps": _CORE,
    "daemonsets": "apis/apps/v1",
    "deployments": "apis/apps/v1",
    "events": _CORE,
    "horizontalpodautoscalers": "apis/autoscaling/v2",
    "leases": "apis/coordination.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "nodes": _CORE,
    "persistentvolumeclaims": _CORE,
    "pods": _CORE,
    "resourcequotas": _CORE,
    "sandboxes": _OWN,
    "sandboxpools": _OWN,
    "sandboxtemplates": _OWN,
    "secrets": _CORE,
    "services": _CORE,
}


class RefusedError(AssertionError):
    """The API server refused a request; the text is its own.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read(kind: str, namespace: str, name: str = "", *, selector: str = "") -> dict[str, Any]:
    """Return an object, or the list of all that a label selector takes; empty where it is not there."""
    query = urllib.parse.urlencode({"labelSelector": selector})
    try:
        return call("GET", f"{path_of(kind, namespace, name)}?{query}")
    except RefusedError as error:
        if error.status != 404:
            raise
        return {}


def watch(
    kind: str, namespace: str, name: str, check: Callable[[dict[str, Any]], T | None], *, within: float
) -> T | None:
    """Return the first that `check` makes of an object, of which it sees each state from now on; None: nothing in time.

    What a test waits for may be over between two looks.
    """
    end = time.monotonic() + within
    while (left := end - time.monotonic()) > 0:
        seconds = max(1, round(left))
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": str(seconds)}
        address = f"{_proxy()}{path_of(kind, namespace)}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=seconds + 30) as events:  # noqa: S310 - the proxy's
            for event in map(json.loads, events):
                found = check(event["object"]) if event["type"] in {"ADDED", "MODIFIED"} else None
                if found is not None:
                    return found
    return None


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Return the path of an object, or of all objects of a kind, which is a plural such as `pods`."""
    place = "" if kind == "nodes" else f"namespaces/{namespace}/"
    return f"/{_GROUPS[kind]}/{place}{kind}/{name}"


def raw(path: str) -> bytes:
    """Return what the API server answers at a path.

    Raises:
        RefusedError: It refused.
    """
    return _send("GET", path)


def call(method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> dict[str, Any]:
    """Return the object that the API server answers with.

    Raises:
        RefusedError: It refused.
    """
    found: dict[str, Any] = json.loads(_send(method, path, body, content_type))
    return found


def _send(method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the proxy's
        f"{_proxy()}{path}", data=data, method=method, headers={"Content-Type": content_type}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the proxy's
            said: bytes = answer.read()
            return said
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
        with suppress(ValueError, KeyError):  # They may be the proxy's own words.
            text = str(json.loads(text)["message"])
        raise RefusedError(error.code, text) from None


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
