"""Builds the volume claim of a persistent workspace. Called by the plan. Pure."""

from typing import Any

from sandpod_api import names
from sandpod_api.types import Sandbox, Workspace
from sandpod_kube import resources
from sandpod_operator.manifests import owner_reference


def build_volume_claim(sandbox: Sandbox, workspace: Workspace) -> dict[str, Any]:
    """Return the volume claim of a persistent workspace; it lives as long as the Sandbox."""
    return {
        "apiVersion": resources.VOLUME_CLAIMS.api_version,
        "kind": resources.VOLUME_CLAIMS.kind,
        "metadata": {
            "name": names.volume_claim_name(sandbox.metadata.name, sandbox.metadata.uid),
            "namespace": sandbox.metadata.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SANDBOX: sandbox.metadata.name},
            "ownerReferences": [owner_reference(resources.SANDBOXES, sandbox)],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": workspace.size}},
            **({"storageClassName": workspace.storage_class_name} if workspace.storage_class_name else {}),
        },
    }
