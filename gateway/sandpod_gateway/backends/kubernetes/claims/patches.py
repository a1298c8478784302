"""What a claim decides and writes: limits, the checked request, the candidate, the patch, a new Sandbox, who wins.

Pure but for the choice between equals: no request, no clock.
"""

import json
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_api.templates import SecretKeyRef, SecretVariable
from sandpod_api.types import Claim, Lifetime, Sandbox, SandboxSpec, SandboxTemplate, TemplateRef, Workspace
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest, WorkspaceRequest
from sandpod_gateway.backends.kubernetes.cache.records import is_live, workspace_max
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.refusals import invalid
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.secrets.values import Secret, dump


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim that is checked: nothing in it can become a selector, a path or a refused object."""

    template: str
    network: str
    claim: Claim
    lifetime: Lifetime | None  # None where none was asked for: a warm sandbox keeps its own then
    workspace: WorkspaceRequest | None = None
    may_make: bool = True  # while none is warm
    secrets: bytes = field(default=b"", repr=False)  # as they are kept
    metadata: tuple[tuple[str, str], ...] = ()
    span: str | None = None  # that of the claim, as W3C's `traceparent`, where there are traces


def check_limits(owned: int, total: int, settings: KubernetesSettings) -> None:
    """Return when one more sandbox is not too many for a caller who has `owned`, of `total` live ones of all callers.

    Raises:
        SandpodError: max_sessions.
    """
    if owned >= settings.max_sandboxes_per_owner:
        message = f"You have {owned} sandboxes; the limit is {settings.max_sandboxes_per_owner}."
        raise SandpodError(ErrorCode.MAX_SESSIONS, message, next_step="Close one with close_sandbox, then try again.")
    if total >= settings.max_sandboxes:
        message = f"All {settings.max_sandboxes} sandboxes of this server are in use."
        step = "Try again when others have closed theirs, or ask the administrator to raise the limit."
        raise SandpodError(ErrorCode.MAX_SESSIONS, message, next_step=step)


def unknown_template(template: str) -> SandpodError:
    """Return the refusal of a template that does not exist."""
    step = "Use a template that the server offers, or leave it out for the default one."
    return invalid(f"There is no template {template!r:.70}.", step)


def unknown_profile(network: str, template: str) -> SandpodError:
    """Return the refusal of a network profile that the template does not have."""
    message = f"The template {template!r:.70} has no network profile {network!r:.70}."
    return invalid(message, "Use one of the template's profiles, or leave it out for no network.")


def check_request(request: ClaimRequest, settings: KubernetesSettings, now: datetime) -> Wanted:
    """Return what a claim is to give; it will carry the time in whole seconds, as on the wire.

    Raises:
        SandpodError: invalid_argument.
    """
    template = request.template if request.template is not None else settings.default_template
    if not names.is_dns_label(template):
        raise unknown_template(template)
    if not names.is_dns_label(request.network):
        raise unknown_profile(request.network, template)
    may_make = request.may_make(allowed=settings.cold_start)
    if request.secrets and not settings.secrets:
        step = "Leave secrets out, or ask the administrator for the setting kubernetes.secrets."
        raise invalid("This server keeps no secrets for sandboxes.", step)
    try:
        claim = Claim(
            owner=request.owner,
            session=request.session,
            time=now.replace(microsecond=0),
            secrets=[_variable(each) for each in request.secrets if each.reference is not None],
        )
        given = [each for each in request.secrets if each.reference is None]
        secrets, lifetime = dump(given) if given else b"", lifetime_of(request)
        return Wanted(
            template, request.network, claim, lifetime, request.workspace, may_make, secrets, request.metadata
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]).replace("idleTimeout", "idle_timeout")
        message = f"{field} is not valid: {first['msg']}."
        raise invalid(message, "Correct the argument and call again.") from error


def _variable(secret: Secret) -> SecretVariable:
    """Return what a claim says of a secret that refers to its value."""
    name, key = secret.reference or ("", "")
    return SecretVariable(
        name=secret.name,
        secret_key_ref=SecretKeyRef(name=name, key=key),
        tools=sorted(secret.tools),
        languages=sorted(secret.languages),
    )


def lifetime_of(request: ClaimRequest) -> Lifetime | None:
    """Return the lifetime that was asked for; where only ttl is, an idle timeout that fits into it."""
    if request.ttl is None and request.idle_timeout is None:
        return None
    idle = Lifetime().idle_timeout if request.idle_timeout is None else request.idle_timeout
    ttl = max(Lifetime().ttl, idle) if request.ttl is None else request.ttl
    # An idle timeout that is longer than the ttl never comes: the ttl ends the sandbox first.
    return Lifetime(ttl=ttl, idle_timeout=min(idle, ttl))


def choose_candidate(warm: Iterable[Sandbox], network: str, preferred: Collection[str]) -> Sandbox | None:
    """Return the warm sandbox to try, or None where none has that network, which a pod can't change.

    Those whose names are preferred come first: they have a stream open already. Of several it is one at random, so that
    gateways rarely try the same one.
    """
    fitting = [sandbox for sandbox in warm if sandbox.spec.network == network]
    first = [sandbox for sandbox in fitting if sandbox.metadata.name in preferred]
    return random.choice(first or fitting) if fitting else None  # noqa: S311 - no secret


def claim_patch(sandbox: Sandbox, wanted: Wanted, claim_id: str) -> list[dict[str, Any]]:
    """Return the JSON patch that claims a warm sandbox, or changes nothing if anyone changed it meanwhile.

    The id is unique for this write: by it the claimer knows its own, should there be no answer.
    """
    meta, claim = sandbox.metadata, wanted.claim
    annotations = {**meta.annotations, **_annotations(wanted, claim_id)}
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version},
        {"op": "add", "path": "/spec/claim", "value": claim.to_wire()},
        {"op": "add", "path": "/metadata/labels", "value": {**meta.labels, **_labels(claim)}},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
    ]
    if meta.owner_references:
        # Out of its pool: what happens to the pool from here on must not take the sandbox with it.
        patch.append({"op": "remove", "path": "/metadata/ownerReferences"})
    if wanted.lifetime is not None:
        patch.append({"op": "add", "path": "/spec/lifetime", "value": wanted.lifetime.to_wire()})
    return patch


def workspace_for(wanted: Wanted, template: SandboxTemplate) -> Workspace | None:
    """Return the workspace to write into a new Sandbox; None for the template's own.

    A persistent one of the template is written too: should the template be gone, the Sandbox says what it has.

    Raises:
        SandpodError: invalid_argument, for one that the template does not allow.
    """
    request, own = wanted.workspace, template.spec.workspace
    if request is None:
        return own if own.persistent else None
    most = workspace_max(template)
    if request.size is not None and request.size > most:
        raise invalid(
            f"A workspace of {request.size} bytes is larger than the template {wanted.template!r} allows.",
            f"Ask for at most {most} bytes, or use another template; the capabilities tell each one's limit.",
        )
    if request.persistent and not (own.persistent or template.spec.workspace_limits.persistent):
        raise invalid(
            f"The template {wanted.template!r} has no persistent workspaces.",
            "Leave persistent out, or use a template that has them; the capabilities tell which do.",
        )
    size = own.size if request.size is None else str(request.size)
    return own.model_copy(update={"size": size, "persistent": request.persistent})


def new_sandbox(name: str, wanted: Wanted, claim_id: str, workspace: Workspace | None = None) -> dict[str, Any]:
    """Return the Sandbox to create for a claim that no warm one can meet; by default with its template's workspace."""
    spec = SandboxSpec(
        template_ref=TemplateRef(name=wanted.template),
        claim=wanted.claim,
        lifetime=wanted.lifetime or Lifetime(),
        network=wanted.network,
        workspace=workspace,
    )
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Sandbox",
        "metadata": {
            "name": name,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_TEMPLATE: wanted.template,
                **_labels(wanted.claim),
            },
            "annotations": _annotations(wanted, claim_id),
        },
        "spec": spec.to_wire(),
    }


def _labels(claim: Claim) -> dict[str, str]:
    return {
        names.LABEL_STATE: names.STATE_CLAIMED,
        names.LABEL_OWNER: names.label_value(claim.owner),
        names.LABEL_SESSION: names.label_value(claim.session),
    }


def _annotations(wanted: Wanted, claim_id: str) -> dict[str, str]:
    found = {names.ANNOTATION_LAST_ACTIVITY: rfc3339(wanted.claim.time), names.ANNOTATION_CLAIM_ID: claim_id}
    if wanted.secrets:
        found[names.ANNOTATION_SECRETS] = "true"
    if wanted.span is not None:
        found[names.ANNOTATION_TRACEPARENT] = wanted.span
    if wanted.metadata:
        found[names.ANNOTATION_METADATA] = json.dumps(dict(wanted.metadata))
    return found


def session_selector(claim: Claim) -> str:
    """Return the label selector of all sandboxes that one owner has under one session's name."""
    return ",".join(f"{key}={value}" for key, value in _labels(claim).items() if key != names.LABEL_STATE)


def of_session(sandboxes: Iterable[Sandbox], claim: Claim) -> list[Sandbox]:
    """Return the live ones that are claimed by the same owner under the same session's name."""
    wanted = (claim.owner, claim.session)
    return [s for s in sandboxes if (own := s.spec.claim) and (own.owner, own.session) == wanted and is_live(s)]


def first_claimed(sandboxes: Iterable[Sandbox]) -> Sandbox:
    """Return the one that wins among claims of one session: the oldest, and by uid among those of one second.

    Every gateway sees the same order, since it is made of what is stored.
    """
    return min(sandboxes, key=lambda s: (s.spec.claim.time.timestamp() if s.spec.claim else 0.0, s.metadata.uid))
