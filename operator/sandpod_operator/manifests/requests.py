"""What the scheduler sets aside for a sandbox: less while it waits in a pool, if its template says so.

What it is to have once it is claimed stands on its pod, so that it gets that whatever becomes of the template.
"""

import json

from sandpod_api import names
from sandpod_api.templates import SandboxTemplate
from sandpod_api.types import Sandbox


def build_requests(sandbox: Sandbox, template: SandboxTemplate) -> dict[str, str]:
    """Return a new pod's requests of CPU and memory."""
    full = _full(template)
    warm = template.spec.warm_requests
    if warm is None or not _waits(sandbox):
        return full
    return {"cpu": warm.cpu or full["cpu"], "memory": warm.memory or full["memory"]}


def build_annotations(sandbox: Sandbox, template: SandboxTemplate) -> dict[str, str]:
    """Return the annotation of a pod whose requests are raised at its claim."""
    full = _full(template)
    if build_requests(sandbox, template) == full:
        return {}
    return {names.ANNOTATION_CLAIMED_REQUESTS: json.dumps(full, sort_keys=True)}


def _full(template: SandboxTemplate) -> dict[str, str]:
    return {"cpu": template.spec.resources.cpu_request, "memory": template.spec.resources.memory_request}


def _waits(sandbox: Sandbox) -> bool:
    return sandbox.spec.claim is None and names.LABEL_POOL in sandbox.metadata.labels
