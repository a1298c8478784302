"""Writes objects of the cluster of KUBECONFIG as an administrator, without a kubectl for each."""

from typing import Any, Final, Literal

from support.cluster.reading import RefusedError, call, path_of

Json = dict[str, Any]

_CLUSTERED: Final = {
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "RuntimeClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
_PATCHES: Final = {
    "apply": "application/apply-patch+yaml",
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


def path_for(manifest: Json, namespace: str = "") -> str:
    """Return the path of the object that a manifest describes; without a namespace of its own it is in that one."""
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    space = metadata.get("namespace", namespace)
    place = "" if kind in _CLUSTERED else f"namespaces/{space}/"
    word = kind.lower()
    ending = "ys" if word.endswith("ay") else {"y": "ies", "x": "xes", "s": "ses"}.get(word[-1], f"{word[-1]}s")
    return f"{root}/{place}{word[:-1]}{ending}/{metadata['name']}"


def apply(manifest: Json, namespace: str = "") -> None:
    """Make an object, or change it to what a manifest says.

    Raises:
        RefusedError: The API server refused it.
    """
    path = f"{path_for(manifest, namespace)}?fieldManager=tests&force=true"
    call("PATCH", path, manifest, content_type=_PATCHES["apply"])


def remove(manifest: Json, namespace: str = "") -> None:
    """Delete the object that a manifest describes, if it is there.

    Raises:
        RefusedError: The API server refused it.
    """
    try:
        call("DELETE", path_for(manifest, namespace))
    except RefusedError as error:
        if error.status != 404:
            raise


def patch(
    kind: str,
    namespace: str,
    name: str,
    change: Any,
    *,
    how: Literal["json", "merge", "strategic"] = "merge",
    part: str = "",
) -> None:
    """Change an object, or a part of it such as `status`.

    Raises:
        RefusedError: The API server refused it.
    """
    path = path_of(kind, namespace, name) + (f"/{part}" if part else "")
    call("PATCH", path, change, content_type=_PATCHES[how])


def delete(kind: str, namespace: str, name: str, *, grace: int | None = None) -> None:
    """Ask for the deletion of an object, and do not wait for it; `grace` is a pod's time to end, seconds.

    Raises:
        RefusedError: The API server refused it, or the object is not there.
    """
    call("DELETE", path_of(kind, namespace, name) + ("" if grace is None else f"?gracePeriodSeconds={grace}"))
