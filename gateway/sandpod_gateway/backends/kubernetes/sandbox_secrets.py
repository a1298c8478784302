"""Secrets of sandboxes: those given with a session, in a Secret that belongs to its Sandbox, and those of templates.

A session's Secret is made before the claim's answer, so that every gateway finds it; Kubernetes deletes it with the
Sandbox. The gateway can make and read Secrets in the sandboxes' namespace, and neither list, change nor delete any.
"""

import base64
import logging
from collections.abc import Callable
from typing import Any, Final

from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.types import Sandbox, SandboxTemplate
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.cluster import Cluster, translated
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.secrets.values import Secret, load, resolved
from sandpod_kube.errors import NotFoundError
from sandpod_kube.resources import SANDBOXES, SECRETS

logger = logging.getLogger(__name__)

ENTRY: Final = "secrets.json"
TYPE: Final = "sandpod.dev/session"
"""Type of a session's Secret. Kubernetes gives some types a meaning, such as an account's token; this one has none."""


def build_secret(sandbox: Sandbox, content: bytes) -> dict[str, Any]:
    """Return the Secret that holds what was given with a sandbox."""
    owner = {**SANDBOXES.header, "name": sandbox.metadata.name, "uid": sandbox.metadata.uid}
    metadata = {
        "name": names.session_secret_name(sandbox.metadata.name, sandbox.metadata.uid),
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SANDBOX: sandbox.metadata.name},
        "ownerReferences": [owner],
    }
    data = {ENTRY: base64.b64encode(content).decode()}
    return {**SECRETS.header, "metadata": metadata, "type": TYPE, "immutable": True, "data": data}


class SandboxSecrets:
    """Reads them; implements `secrets.values.SecretSource`."""

    def __init__(
        self, cluster: Callable[[], Cluster], sandbox: Callable[[str], Sandbox | None], *, enabled: bool
    ) -> None:
        """Take what returns a claimed Sandbox by its name; one that is not `enabled` finds no secrets of templates."""
        self._cluster = cluster
        self._sandbox = sandbox
        self._enabled = enabled

    async def of_session(self, sandbox: str) -> tuple[Secret, ...]:
        """Return what was given with a sandbox."""
        found = self._sandbox(sandbox)
        name = names.session_secret_name(sandbox, found.metadata.uid) if found is not None else ""
        try:
            return load((await self._read(name) or {})[ENTRY])
        except (KeyError, ValueError):
            logger.warning("the Secret %s of sandbox %s is not there or not readable", name, sandbox)
            message, step = "The sandbox's secrets are not there.", "Try again in a moment; else use another sandbox."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step) from None

    async def of_template(self, template: str) -> tuple[Secret, ...] | None:
        """Return a template's secrets."""
        if not self._enabled:
            return ()
        cluster = self._cluster()
        try:
            with translated("a template was read"):
                spec = SandboxTemplate.model_validate(await cluster.get(names.TEMPLATES, template)).spec
        except SandpodError as error:
            if isinstance(error.__cause__, NotFoundError):
                return None
            raise
        except ValidationError:
            return None  # one that this version does not understand
        used = sorted({each.secret_key_ref.name for each in spec.secrets})
        contents = {name: await self._read(name) for name in used}
        secrets = []
        for each in spec.secrets:
            reference = each.secret_key_ref
            data = (contents[reference.name] or {}).get(reference.key)
            secret = resolved(Secret.limited(each.name, each.tools, each.languages), data)
            if secret.problem:
                place = (each.name, template, reference.name, reference.key)
                logger.warning("secret %s of template %s (Secret %s, key %s) %s", *place, secret.problem)
            secrets.append(secret)
        return tuple(secrets)

    async def _read(self, name: str) -> dict[str, bytes] | None:
        """Return the entries of a Secret; None where there is none of that name."""
        cluster = self._cluster()
        with translated("a Secret was read"):
            try:
                secret = await cluster.client.get(SECRETS, cluster.namespace, name) if name else {}
            except NotFoundError:
                return None
        return {key: base64.b64decode(text) for key, text in (secret.get("data") or {}).items()}
