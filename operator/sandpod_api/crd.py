"""Renders the CustomResourceDefinitions from `types.py`.

Kubernetes wants a structural schema: no references, no unions except with null, no `additionalProperties` next to
`properties`; whatever can't be written so is refused here instead of by the API server.
"""

from typing import Any, Final

from pydantic import BaseModel

from sandpod_api import names
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate, SandboxTenant

# Keywords that mean the same in a structural schema. Everything else has a case of its own or is refused.
_KEPT: Final = (  # noqa: SIM905 - one a line would be longer than the rest
    "type description default enum pattern format minLength maxLength minItems maxItems maxProperties minimum maximum"
    " required x-kubernetes-validations x-kubernetes-list-type x-kubernetes-list-map-keys"
).split()
_DROPPED: Final = {"title", "$defs", "$ref", "properties", "items", "anyOf", "additionalProperties", "const"}


def structural(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema of pydantic's, or a part of one, as a structural schema.

    Raises ValueError: it has a keyword or a union that a structural schema can't express.
    """
    if "$ref" in schema:
        named = defs[schema["$ref"].removeprefix("#/$defs/")]
        return structural({**named, **{k: v for k, v in schema.items() if k != "$ref"}}, defs)
    if unknown := set(schema) - set(_KEPT) - _DROPPED:
        raise ValueError(f"not structural: {sorted(unknown)}")
    if "anyOf" in schema:
        return _nullable(schema, defs)
    result: dict[str, Any] = {k: schema[k] for k in _KEPT if k in schema}
    if isinstance(result.get("default"), dict):
        # What is optional is absent: the API server takes no null where a string is asked for.
        result["default"] = {k: v for k, v in result["default"].items() if v is not None}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if "properties" in schema:
        result["properties"] = {k: structural(v, defs) for k, v in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(schema["additionalProperties"], defs)
    elif schema.get("type") == "object":
        result["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in schema:
        result["items"] = structural(schema["items"], defs)
    return result


def _nullable(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """An optional field: absent, never null, so the union falls away and so does the default."""
    options = [o for o in schema["anyOf"] if o.get("type") != "null"]
    if len(options) != 1:
        raise ValueError("a structural schema has no unions but an optional value")
    rest = {k: v for k, v in schema.items() if k not in {"anyOf", "default"}}
    return structural({**options[0], **rest}, defs)


def _part(model: type[BaseModel], field: str) -> dict[str, Any]:
    whole = model.model_json_schema(by_alias=True)
    return structural(whole["properties"][field], whole.get("$defs", {}))


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": priority} if priority else column


_TEMPLATE: Final = _column("Template", ".spec.templateRef.name")
_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")
_REASON: Final = _column("Reason", ".status.reason", priority=1)
_NAME: Final = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}


def _crd(
    model: type[BaseModel], plural: str, short: str, *columns: dict[str, Any], **subresources: Any
) -> dict[str, Any]:
    kind = model.__name__
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": dict(_NAME)}},
        "spec": _part(model, "spec"),
    }
    schema = {"type": "object", "description": model.__doc__, "required": ["spec"], "properties": properties}
    version: dict[str, Any] = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(columns),
        "schema": {"openAPIV3Schema": schema},
    }
    if "status" in model.model_fields:
        properties["status"] = {k: v for k, v in _part(model, "status").items() if k != "default"}
        version["subresources"] = {"status": {}, **subresources}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["sandpod"],
            },
            "versions": [version],
        },
    }


def render() -> list[dict[str, Any]]:
    """Return all CustomResourceDefinitions as plain objects."""
    sandbox = (
        _TEMPLATE,
        _column("Phase", ".status.phase"),
        _column("Owner", ".spec.claim.owner"),
        _AGE,
        # A date column shows times to come as <invalid>, so this one is the time itself.
        _column("Expires", ".status.expiresAt"),
        _REASON,
        _column("Node", ".status.nodeName", priority=1),
        _column("Network", ".status.network", priority=1),
    )
    template = (_column("Image", ".spec.image"), _column("Runtime", ".spec.runtimeClassName"), _AGE)
    wanted = _column("Wanted", ".status.desiredReplicas", "integer")
    ready = _column("Ready", ".status.readyReplicas", "integer")
    rate = _column("Claims/s", ".status.claimsPerSecond", "number", priority=1)
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    condition = ".status.conditions[?(@.type=='Ready')]"
    tenant = (
        _column("Namespace", ".status.namespace"),
        _column("Ready", f"{condition}.status"),
        _column("Reason", f"{condition}.reason"),
        _AGE,
        _column("Message", f"{condition}.message", priority=1),
    )
    return [
        _crd(Sandbox, names.SANDBOXES, "sbx", *sandbox),
        _crd(SandboxTemplate, names.TEMPLATES, "sbxt", *template),
        _crd(SandboxPool, names.POOLS, "sbxp", _TEMPLATE, wanted, ready, _AGE, _REASON, rate, scale=scale),
        _crd(SandboxTenant, names.TENANTS, "sbxtn", *tenant),
    ]
