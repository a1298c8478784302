"""Builds the Sandboxes of a pool and the volume claim of a persistent workspace."""

import hashlib
import json
from typing import Any

from sandpod_api import names
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate, Workspace
from sandpod_kube import resources
from sandpod_operator.manifests.pod import child_metadata


def template_hash(template: SandboxTemplate) -> str:
    """Return a short hash of all that a template says; warm sandboxes with another one are out of date."""
    text = json.dumps(template.spec.to_wire(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_warm_sandbox(pool: SandboxPool, template: SandboxTemplate, suffix: str) -> dict[str, Any]:
    """Return a Sandbox that waits in the pool; the claim patch takes it out by removing the owner reference."""
    labels = {
        names.LABEL_TEMPLATE: template.metadata.name,
        names.LABEL_POOL: pool.metadata.name,
        names.LABEL_STATE: names.STATE_WARM,
    }
    metadata = child_metadata(names.child_name(pool.metadata.name, suffix), resources.POOLS, pool, labels)
    return {
        **resources.SANDBOXES.header,
        "metadata": {**metadata, "annotations": {names.ANNOTATION_TEMPLATE_HASH: template_hash(template)}},
        "spec": {
            "templateRef": {"name": template.metadata.name},
            # Should the template be gone one day, the Sandbox says that its files outlive its pod.
            **({"workspace": workspace.to_wire()} if (workspace := template.spec.workspace).persistent else {}),
        },
    }


def build_volume_claim(sandbox: Sandbox, workspace: Workspace) -> dict[str, Any]:
    """Return the volume claim of a persistent workspace; it lives as long as the Sandbox."""
    name = names.volume_claim_name(sandbox.metadata.name, sandbox.metadata.uid)
    return {
        **resources.VOLUME_CLAIMS.header,
        "metadata": child_metadata(name, resources.SANDBOXES, sandbox, {names.LABEL_SANDBOX: sandbox.metadata.name}),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": workspace.size}},
            **({"storageClassName": workspace.storage_class_name} if workspace.storage_class_name else {}),
        },
    }
