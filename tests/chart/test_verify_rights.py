"""`sandpod verify` knows the rights that the chart gives: with whatever values, none of them is one too many."""

import pytest
import yaml

from sandpod_gateway.verify.rights import Held, beyond, granted, held_by
from support.chart.render import Manifest, render

VALUES = {
    "as it comes": (),
    "without secrets": ("gateway.config.kubernetes.secrets=false",),
    "pools scaled": ("gateway.config.kubernetes.scale_pools=true",),
    "tenants": ("tenants.team.quota.enabled=true",),
    "first use": ("tenantsOnFirstUse.enabled=true",),
}


def of_kind(made: list[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in made if each["kind"] in kinds]


def settings(made: list[Manifest]) -> dict[str, object]:
    found = next(each for each in of_kind(made, "ConfigMap") if each["metadata"]["name"] == "sandpod-gateway-config")
    kubernetes: dict[str, object] = yaml.safe_load(found["data"]["config.yaml"])["kubernetes"]
    return kubernetes


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("component", ["gateway", "operator"])
def test_every_right_of_the_chart_is_known_and_none_is_known_that_it_does_not_give(name: str, component: str) -> None:
    made = render(*VALUES[name])
    found = settings(made)
    spaces = [each["metadata"]["name"] for each in of_kind(made, "Namespace")]
    facts = {
        "sandboxes": spaces,
        "release": "sandpod",
        "options": {
            "secrets": bool(found.get("secrets")),
            "scale_pools": bool(found.get("scale_pools")),
            "first_use": bool(found.get("first_use_namespace")),
        },
    }
    roles = of_kind(made, "Role", "ClusterRole")
    bindings = of_kind(made, "RoleBinding", "ClusterRoleBinding")
    held: Held = held_by("sandpod", f"sandpod-{component}", roles, bindings)
    assert beyond(component, held, facts) == []
    if name != "first use":  # whose namespaces are not there yet
        most = granted(component, facts["options"])  # type: ignore[arg-type]
        assert all(held[space] == most["sandboxes"] for space in spaces)
