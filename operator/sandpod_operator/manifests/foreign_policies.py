"""Finds network policies of others that open something to sandbox pods: policies are additive, so ours can't close it.

Decided by the labels that sandbox pods can have, not by those of existing pods: a policy is reported before the first
pod that it opens.
"""

from collections.abc import Container
from typing import Any, Final

from sandpod_api import names
from sandpod_api.fields import ObjectMeta
from sandpod_kube.resources import TEMPLATES
from sandpod_operator.model.observed import Widening

# What a sandbox pod carries, and the value where that is the same for all.
_LABELS: Final[dict[str, str | None]] = {
    names.LABEL_MANAGED_BY: names.MANAGED_BY,
    names.LABEL_SANDBOX: None,
    names.LABEL_TEMPLATE: None,
    names.LABEL_NETWORK: None,
}


def find_widening(policy: dict[str, Any], templates: Container[str]) -> Widening | None:
    """Return what a policy opens, or None where it is Sandpod's own or opens nothing to a sandbox.

    Args:
        policy: As the API server has it.
        templates: The names of the namespace's templates, whose policies are kept as they must be.
    """
    metadata = ObjectMeta.model_validate(policy["metadata"])
    directions = _opened(policy.get("spec") or {})
    if not directions or _is_own(metadata, templates) or not _may_select(policy["spec"].get("podSelector") or {}):
        return None
    return Widening(metadata, directions)


def _is_own(metadata: ObjectMeta, templates: Container[str]) -> bool:
    """Return whether Sandpod keeps it as it must be, or deletes it together with the template that it belongs to."""
    template = metadata.labels.get(names.LABEL_TEMPLATE)
    if metadata.name == names.POLICY_DENY_ALL:
        return True
    if metadata.labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY or template is None:
        return False
    owners = {(owner.get("kind"), owner.get("name")) for owner in metadata.owner_references}
    return template in templates or (TEMPLATES.kind, template) in owners


def _opened(spec: dict[str, Any]) -> tuple[str, ...]:
    """Return the directions in which it allows anything; it does not affect one that it does not name."""
    kinds = spec.get("policyTypes") or ("Ingress", "Egress")
    return tuple(kind.lower() for kind in ("Ingress", "Egress") if kind in kinds and spec.get(kind.lower()))


def _may_select(selector: dict[str, Any]) -> bool:
    """Return whether a label selector can select a sandbox pod."""
    needs = [(key, "In", {value}) for key, value in (selector.get("matchLabels") or {}).items()]
    needs += [
        (each["key"], each["operator"], set(each.get("values") or ()))
        for each in selector.get("matchExpressions") or ()
    ]
    return all(_can_hold(key, [(kind, values) for k, kind, values in needs if k == key]) for key, _, _ in needs)


def _can_hold(key: str, needs: list[tuple[str, set[str]]]) -> bool:
    """Return whether a sandbox pod's label can meet all requirements of one key."""
    if key not in _LABELS:
        return all(kind in {"NotIn", "DoesNotExist"} for kind, _ in needs)
    if any(kind == "DoesNotExist" for kind, _ in needs):
        return False
    fixed = _LABELS[key]
    wanted = [values for kind, values in needs if kind == "In"] + ([{fixed}] if fixed is not None else [])
    barred = set[str]().union(*(values for kind, values in needs if kind == "NotIn"))
    return not wanted or bool(set.intersection(*wanted) - barred)
