"""The CRDs that are rendered from the types: structural, closed, with their rules, columns and defaults."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from sandpod_api import crd
from sandpod_api.conditions import Condition
from sandpod_api.types import Sandbox, SandboxPool, SandboxTemplate

CRDS = {made["spec"]["names"]["kind"]: made for made in crd.render()}
# What a structural schema may say; anything else the API server refuses.
KEYWORDS = {
    "type",
    "description",
    "default",
    "enum",
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "minimum",
    "maximum",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
}


def version(kind: str) -> dict[str, Any]:
    made: dict[str, Any] = CRDS[kind]["spec"]["versions"][0]
    return made


def schema(kind: str) -> dict[str, Any]:
    made: dict[str, Any] = version(kind)["schema"]["openAPIV3Schema"]
    return made


def parts(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every schema inside a schema, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from parts(child, f"{path}.{name}")
    if "items" in node:
        yield from parts(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from parts(node["additionalProperties"], f"{path}{{}}")


def part(kind: str, path: str) -> dict[str, Any]:
    return dict(parts(schema(kind)))[path]


@pytest.mark.parametrize("kind", CRDS)
def test_schema_is_structural(kind: str) -> None:
    for path, node in parts(schema(kind)):
        assert set(node) <= KEYWORDS, path
        assert isinstance(node["type"], str), path
        assert not ("properties" in node and "additionalProperties" in node), path


@pytest.mark.parametrize("kind", CRDS)
def test_every_string_and_list_that_a_user_writes_is_bounded(kind: str) -> None:
    for path, node in parts(schema(kind)["properties"]["spec"], ".spec"):
        if node["type"] == "string" and "format" not in node:
            assert "maxLength" in node or "enum" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_of_a_spec_says_what_it_is(kind: str) -> None:
    undescribed = [path for path, node in parts(schema(kind)["properties"]["spec"]) if "description" not in node]
    # Items are described by their list or map.
    assert [p for p in undescribed if not p.endswith(("[]", "{}"))] == []


def test_names_kinds_and_short_names() -> None:
    found = {
        kind: (made["metadata"]["name"], made["spec"]["names"]["shortNames"], made["spec"]["scope"])
        for kind, made in CRDS.items()
    }
    assert found == {
        "Sandbox": ("sandboxes.sandpod.dev", ["sbx"], "Namespaced"),
        "SandboxTemplate": ("sandboxtemplates.sandpod.dev", ["sbxt"], "Namespaced"),
        "SandboxPool": ("sandboxpools.sandpod.dev", ["sbxp"], "Namespaced"),
        "SandboxTenant": ("sandboxtenants.sandpod.dev", ["sbxtn"], "Namespaced"),
    }


def test_columns_are_what_kubectl_get_shows() -> None:
    shown = {kind: [c["name"] for c in version(kind)["additionalPrinterColumns"]] for kind in CRDS}
    assert shown == {
        "Sandbox": ["Template", "Phase", "Owner", "Age", "Expires", "Reason", "Node", "Network"],
        "SandboxTemplate": ["Image", "Runtime", "Age"],
        "SandboxPool": ["Template", "Wanted", "Ready", "Age", "Reason", "Claims/s"],
        "SandboxTenant": ["Namespace", "Ready", "Reason", "Age", "Message"],
    }


def test_pool_can_be_scaled_and_status_is_written_apart() -> None:
    assert version("SandboxPool")["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert version("Sandbox")["subresources"] == {"status": {}}
    assert "subresources" not in version("SandboxTemplate")


def sentences(kind: str) -> set[str]:
    return {rule["message"] for _, node in parts(schema(kind)) for rule in node.get("x-kubernetes-validations", ())}


def test_rules_and_their_sentences() -> None:
    assert sentences("Sandbox") == {
        "a claim is written once and never changed",
        "templateRef can't be changed; create another Sandbox",
        "workspace can't be changed; create another Sandbox",
        "idleTimeout can't be longer than ttl",
        "the name is reserved: give the secret another one",
    }
    assert sentences("SandboxTemplate") == {
        "the network profile none is built in and always closed",
        "localhostProfile goes with the type Localhost, and with no other",
        "cpuRequest can't be larger than cpu",
        "memoryRequest can't be larger than memory",
        "warmRequests.cpu can't be larger than resources.cpuRequest",
        "warmRequests.memory can't be larger than resources.memoryRequest",
        "warmRequests needs cpuRequest or memoryRequest below its limit: no pod becomes Guaranteed later",
        "python, javascript and shell are built in: give the language another name",
        "the command is a program, and {file} in one of the words after it",
        "the name is reserved: give the secret another one",
    }


def test_defaults_are_those_of_the_types() -> None:
    spec = schema("Sandbox")["properties"]["spec"]["properties"]
    assert spec["lifetime"]["default"] == {"ttl": 14400, "idleTimeout": 1800}
    assert spec["lifetime"]["properties"]["ttl"]["default"] == 14400
    assert (spec["network"]["default"], spec["operatingMode"]["default"]) == ("none", "Running")
    assert "default" not in spec["claim"]
    assert "default" not in spec["workspace"]


def test_no_default_has_a_null_in_it_which_the_api_server_refuses() -> None:
    spec = schema("SandboxTemplate")["properties"]["spec"]["properties"]
    assert spec["workspace"]["default"] == {"size": "256Mi", "medium": "Memory", "persistent": False}
    assert spec["workspaceLimits"]["default"] == {"persistent": False}
    assert "null" not in json.dumps(defaults(spec))


def defaults(node: Any) -> list[Any]:
    """Return all defaults in a schema."""
    if isinstance(node, list):
        return [found for each in node for found in defaults(each)]
    if not isinstance(node, dict):
        return []
    return [*([node["default"]] if "default" in node else []), *(f for each in node.values() for f in defaults(each))]


@pytest.mark.parametrize(("kind", "model"), [("Sandbox", Sandbox), ("SandboxTemplate", SandboxTemplate)])
def test_object_with_only_what_is_required_is_read_as_the_api_server_fills_it_in(
    kind: str, model: type[Sandbox | SandboxTemplate]
) -> None:
    required = {"Sandbox": {"templateRef": {"name": "python"}}, "SandboxTemplate": {"image": "x"}}[kind]
    filled = filled_in(schema(kind)["properties"]["spec"], required)
    assert model.model_validate({"spec": required}) == model.model_validate({"spec": filled})


def filled_in(node: dict[str, Any], value: Any) -> Any:
    """Fill in defaults as the API server does."""
    if node["type"] != "object" or not isinstance(value, dict):
        return value
    result = dict(value)
    for name, child in node.get("properties", {}).items():
        if name not in result and "default" in child:
            result[name] = child["default"]
        if name in result:
            result[name] = filled_in(child, result[name])
    return result


def test_conditions_are_merged_by_type() -> None:
    for kind in ("Sandbox", "SandboxPool"):
        node = part(kind, ".status.conditions")
        assert (node["x-kubernetes-list-type"], node["x-kubernetes-list-map-keys"]) == ("map", ["type"])
        assert part(kind, ".status.conditions[].message")["maxLength"] == 1024


def test_name_of_an_object_must_be_one_that_its_pod_can_have() -> None:
    for kind in CRDS:
        name = part(kind, ".metadata.name")
        assert name["maxLength"] == 63


class Union(BaseModel):
    value: int | str


class Open(BaseModel):
    value: dict[str, Any]


def test_union_is_refused_since_a_structural_schema_has_none() -> None:
    with pytest.raises(ValueError, match="no unions"):
        crd.structural(Union.model_json_schema()["properties"]["value"], {})


def test_keyword_that_is_not_structural_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not structural: \['oneOf'\]"):
        crd.structural({"type": "string", "oneOf": []}, {})


def test_object_of_anything_keeps_its_fields() -> None:
    made = crd.structural(Open.model_json_schema(), {})
    assert made["properties"]["value"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def test_models_and_schemas_have_the_same_fields() -> None:
    for kind, model in (("Sandbox", Sandbox), ("SandboxTemplate", SandboxTemplate), ("SandboxPool", SandboxPool)):
        spec = model.model_json_schema(by_alias=True)["$defs"][f"{kind}Spec"]["properties"]
        assert set(schema(kind)["properties"]["spec"]["properties"]) == set(spec)
    fields = {field.alias for field in Condition.model_fields.values()}
    assert set(part("Sandbox", ".status.conditions[]")["properties"]) == fields
