"""What an account may do by roles and bindings, and what of it the chart does not give."""

from typing import Any

import pytest

from sandpod_gateway.verify.rights import EVERYWHERE, beyond, held_by, rights_of

FACTS = {
    "sandboxes": ["boxes"],
    "release": "release",
    "options": {"secrets": False, "scale_pools": False, "first_use": False},
}
ROLES: list[dict[str, Any]] = [
    {
        "kind": "Role",
        "metadata": {"name": "more", "namespace": "boxes"},
        "rules": [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]}],
    },
    {
        "kind": "ClusterRole",
        "metadata": {"name": "more"},
        "rules": [
            {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["a"], "verbs": ["patch"]},
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
        ],
    },
]


def binding(kind: str, role: str, subject: dict[str, str], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": "b", **({"namespace": namespace} if namespace else {})}
    return {"metadata": metadata, "roleRef": {"kind": kind, "name": role}, "subjects": [subject]}


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "ServiceAccount", "name": "gateway", "namespace": "release"},
        {"kind": "User", "name": "system:serviceaccount:release:gateway"},
        {"kind": "Group", "name": "system:serviceaccounts:release"},
        {"kind": "Group", "name": "system:serviceaccounts"},
        {"kind": "Group", "name": "system:authenticated"},
    ],
)
def test_rights_reach_an_account_by_name_and_by_group(subject: dict[str, str]) -> None:
    found = held_by("release", "gateway", ROLES, [binding("Role", "more", subject, "boxes")])
    assert found == {"boxes": {("get", "pods"), ("get", "pods/log")}}


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "ServiceAccount", "name": "gateway", "namespace": "other"},
        {"kind": "ServiceAccount", "name": "other", "namespace": "release"},
        {"kind": "Group", "name": "system:serviceaccounts:other"},
        {"kind": "Group", "name": "system:masters"},
    ],
)
def test_rights_of_others_do_not(subject: dict[str, str]) -> None:
    assert held_by("release", "gateway", ROLES, [binding("ClusterRole", "more", subject)]) == {}


def test_cluster_role_reaches_as_far_as_its_binding() -> None:
    subject = {"kind": "ServiceAccount", "name": "gateway", "namespace": "release"}
    rights = {("patch", "deployments.apps:a"), ("get", "/metrics")}
    everywhere = held_by("release", "gateway", ROLES, [binding("ClusterRole", "more", subject)])
    assert everywhere == {EVERYWHERE: rights}
    assert held_by("release", "gateway", ROLES, [binding("ClusterRole", "more", subject, "x")]) == {"x": rights}
    # A Role of that name in another namespace is another one.
    assert held_by("release", "gateway", ROLES, [binding("Role", "more", subject, "x")]) == {"x": set()}


def test_stars_are_rights_of_their_own() -> None:
    assert rights_of([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]) == {("*", "*.*")}
    held = {EVERYWHERE: {("*", "*.*")}}
    assert beyond("operator", held, FACTS) == [(EVERYWHERE, "*", "*.*")]


def test_right_is_the_charts_in_its_place_alone() -> None:
    execute, lease = ("create", "pods/exec"), ("update", "leases.coordination.k8s.io")
    assert beyond("gateway", {"boxes": {execute}}, FACTS) == []
    assert beyond("gateway", {"release": {execute}}, FACTS) == [("release", *execute)]
    assert beyond("operator", {"boxes": {execute}}, FACTS) == [("boxes", *execute)]
    assert beyond("operator", {"release": {lease}, "kube-system": {lease}}, FACTS) == [("kube-system", *lease)]


def test_single_secrets_are_the_gateways_in_the_release_alone() -> None:
    right = ("patch", "secrets:sandpod-links")
    assert beyond("gateway", {"release": {right}}, FACTS) == []
    assert beyond("gateway", {"boxes": {right}}, FACTS) == [("boxes", *right)]
    assert beyond("operator", {"release": {right}}, FACTS) == [("release", *right)]
    assert beyond("gateway", {"release": {("get", "secrets")}}, FACTS) == [("release", "get", "secrets")]


def test_settings_decide_about_more() -> None:
    right = ("create", "secrets")
    assert beyond("gateway", {"boxes": {right}}, FACTS) == [("boxes", *right)]
    facts = {**FACTS, "options": {**FACTS["options"], "secrets": True}}  # type: ignore[dict-item]
    assert beyond("gateway", {"boxes": {right}}, facts) == []
