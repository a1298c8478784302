from typing import Any

import pytest

from sandpod_api.types import NetworkProfile
from sandpod_operator.planning.network_policies import build_deny_all, build_profile, in_force
from support.operator.world import a_template

DENY_ALL: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {
        "name": "sandpod-deny-all",
        "namespace": "boxes",
        "labels": {"app.kubernetes.io/managed-by": "sandpod"},
    },
    "spec": {
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/managed-by": "sandpod"},
            "matchExpressions": [{"key": "sandpod.dev/sandbox", "operator": "Exists"}],
        },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [],
    },
}


def test_deny_all_selects_every_sandbox_pod_and_allows_nothing() -> None:
    assert build_deny_all("boxes") == DENY_ALL


def test_profile_opens_what_it_lists_and_nothing_else() -> None:
    profile = NetworkProfile.model_validate(
        {
            "name": "web",
            "dns": True,
            "egress": [
                {"cidr": "0.0.0.0/0", "exceptCidrs": ["10.0.0.0/8"], "ports": [443]},
                {"cidr": "192.0.2.0/24"},
            ],
        }
    )
    assert build_profile(a_template(), profile) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": "sandpod-python-web",
            "namespace": "boxes",
            "labels": {
                "app.kubernetes.io/managed-by": "sandpod",
                "sandpod.dev/template": "python",
                "sandpod.dev/network": "web",
            },
            "ownerReferences": [
                {
                    "apiVersion": "sandpod.dev/v1alpha1",
                    "kind": "SandboxTemplate",
                    "name": "python",
                    "uid": "uid-python",
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/managed-by": "sandpod",
                    "sandpod.dev/template": "python",
                    "sandpod.dev/network": "web",
                }
            },
            "policyTypes": ["Egress"],
            "ingress": [],
            "egress": [
                {
                    "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}],
                    "ports": [{"port": 443, "protocol": "TCP"}],
                },
                {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
                {
                    "to": [
                        {
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                        }
                    ],
                    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
                },
            ],
        },
    }


def as_stored(**changes: Any) -> dict[str, Any]:
    """The policy as the API server gives it back: without its empty lists."""
    spec = {k: v for k, v in DENY_ALL["spec"].items() if v != []}
    return {"metadata": {"name": "sandpod-deny-all"}, "spec": {**spec, **changes}}


def test_policy_without_its_empty_lists_is_in_force() -> None:
    assert in_force(DENY_ALL, as_stored())


@pytest.mark.parametrize(
    "drift",
    [
        {"ingress": [{}]},
        {"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]},
        {"policyTypes": ["Ingress"]},
        {"podSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "sandpod", "x": "y"}}},
    ],
)
def test_policy_that_somebody_opened_is_not_in_force(drift: dict[str, Any]) -> None:
    assert not in_force(DENY_ALL, as_stored(**drift))


def test_missing_policy_is_not_in_force() -> None:
    assert not in_force(DENY_ALL, None)
