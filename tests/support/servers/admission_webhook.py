"""Admission webhooks for the pods of one namespace, as others install them in a cluster: down, slow, or injecting.

Called by `test_operator_webhooks.py`. The configuration is there while the block lasts, and whatever happens not after
it: a webhook that is left behind refuses pods.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.cluster import writing
from support.servers.https_server import https_server

VERSION: Final = "admissionregistration.k8s.io/v1"

Pod = dict[str, Any]
# Returns the changes to a pod, as JSON Patch. It runs in a thread and may take its time.
Changes = Callable[[Pod], list[dict[str, Any]]]


def webhook_name(namespace: str) -> str:
    """Return how the webhook for a namespace is called, as its configuration is."""
    return f"{namespace}.example.com"


@contextmanager
def configured(namespace: str, client: dict[str, Any], **fields: Any) -> Iterator[None]:
    """Let the API server ask a webhook about each new pod of a namespace, and refuse the pod where it does not answer.

    Args:
        namespace: Whose pods.
        client: How the API server reaches it, as `clientConfig`.
        fields: More of a webhook in its configuration; a `namespaceSelector` adds labels that the namespace must have.
    """
    name = webhook_name(namespace)
    labels = {"kubernetes.io/metadata.name": namespace, **fields.pop("namespaceSelector", {})}
    hook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": labels},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "clientConfig": client,
        **fields,
    }
    kind = "MutatingWebhookConfiguration"
    made = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "webhooks": [hook]}
    writing.apply(made)
    try:
        yield
    finally:
        writing.remove(made)


@contextmanager
def webhook(namespace: str, changes: Changes, folder: Path, **fields: Any) -> Iterator[None]:
    """Run a webhook that admits all pods of a namespace with some changes, and let the API server ask it.

    Args:
        namespace: Whose pods.
        changes: What it changes.
        folder: Where its certificate is written.
        fields: As `configured`.
    """

    def answer(_: str, body: bytes) -> dict[str, Any]:
        request = json.loads(body)["request"]
        patch = b64encode(json.dumps(changes(request["object"])).encode()).decode()
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    with https_server(answer, folder) as served:
        url = f"https://{served.host}:{served.port}/"
        client = {"url": url, "caBundle": b64encode(served.certificate).decode()}
        with configured(namespace, client, **fields):
            yield


def injecting(container: dict[str, Any]) -> Changes:
    """Return the changes of a mesh's injector: a container before all others, which tools then take for the pod's."""

    def changes(pod: Pod) -> list[dict[str, Any]]:
        annotations = {
            **pod["metadata"].get("annotations", {}),
            "kubectl.kubernetes.io/default-container": container["name"],
        }
        return [
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
            {"op": "add", "path": "/spec/containers/0", "value": container},
        ]

    return changes
