"""Secrets of sandboxes: given with a session, in a Secret that belongs to its Sandbox, or referred to.

A session's Secret is made before the claim's answer, so that every gateway finds it; Kubernetes deletes it with the
Sandbox. The gateway can make and read Secrets in the sandboxes' namespace, and neither list, change nor delete any.
"""

import base64
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, cast

from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.templates import SecretVariable
from sandpod_api.types import Sandbox, SandboxTemplate
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import user_of
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes.cluster import Cluster, translated
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.secrets.values import Reference, Secret, bounded, load, resolved
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
        return await self._resolved(map(_referring, spec.secrets), f"template {template}", None)

    async def of_claim(self, sandbox: str) -> tuple[Secret, ...]:
        """Return the secrets that a claim refers to: of Secrets that name its owner."""
        found = self._sandbox(sandbox)
        claim = found.spec.claim if found is not None else None
        if claim is None or not self._enabled:
            return ()
        return await self._resolved(map(_referring, claim.secrets), f"sandbox {sandbox}", claim.owner)

    async def check(self, request: ClaimRequest) -> None:
        """Raise not_found where a claim refers to what its owner may not have, or can't be used."""
        secrets = [each for each in request.secrets if each.reference is not None and self._enabled]
        for each in bounded(await self._resolved(secrets, "a claim", request.owner)):
            if each.problem and each.reference is not None:
                message = f"The Secret {each.reference.secret} with the key {each.reference.key} {each.problem}."
                step = f"Ask the administrator for it, with your name in the annotation {names.ANNOTATION_USERS}."
                raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)

    async def _resolved(self, secrets: Iterable[Secret], of: str, owner: str | None) -> tuple[Secret, ...]:
        """Return secrets with their values or problems. Those for an owner must be in Secrets that name it."""
        contents: dict[str, dict[str, bytes]] = {}
        found = []
        for each in secrets:
            secret, key = cast("Reference", each.reference)
            if secret not in contents:
                contents[secret] = await self._read(secret, owner) or {}
            entry = resolved(each, contents[secret].get(key))
            if entry.problem:
                logger.warning("secret %s of %s (Secret %s, key %s) %s", each.name, of, secret, key, entry.problem)
            found.append(entry)
        return tuple(found)

    async def _read(self, name: str, owner: str | None = None) -> dict[str, bytes] | None:
        """Return the entries of a Secret; None where there is none of that name, or none that is for that owner."""
        cluster = self._cluster()
        with translated("a Secret was read"):
            try:
                secret = await cluster.client.get(SECRETS, cluster.namespace, name) if name else {}
            except NotFoundError:
                return None
        if owner is not None and not _is_for(owner, secret):
            return None
        return {key: base64.b64decode(text) for key, text in (secret.get("data") or {}).items()}


def _is_for(owner: str, secret: dict[str, Any]) -> bool:
    users = (secret["metadata"].get("annotations") or {}).get(names.ANNOTATION_USERS, "")
    return bool({"*", user_of(owner)} & {each.strip() for each in users.split(",") if each.strip()})


def _referring(variable: SecretVariable) -> Secret:
    place = Reference(variable.secret_key_ref.name, variable.secret_key_ref.key)
    return replace(Secret.limited(variable.name, variable.tools, variable.languages), reference=place)
