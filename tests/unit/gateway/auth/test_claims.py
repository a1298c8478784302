"""Whose a token is by its claims: user, tenant and role."""

from typing import Any

import pytest
from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.oidc.claims import RefusedError, caller_token
from sandpod_gateway.auth.oidc.settings import OidcSettings

TENANTS = {"/red": "red", "/red/lead": "red", "/blue": "blue"}


def settings(**more: Any) -> OidcSettings:
    return OidcSettings(issuer="https://login.example.com", **more)


def caller(claims: dict[str, Any], **more: Any) -> tuple[str, str, str] | None:
    token = caller_token(settings(**more), {"sub": "alice", "exp": 1} | claims)
    return None if token is None else (token.caller.owner, token.caller.tenant, token.caller.role)


@pytest.mark.parametrize("groups", [["/red"], "/red", ["/red", "/red/lead", "/other", 7, None]], ids=str)
def test_groups_lead_to_one_tenant(groups: Any) -> None:
    assert caller({"groups": groups}, tenants=TENANTS) == (owner_of("red", "alice"), "red", "user")


def test_users_of_one_name_in_two_tenants_are_two_owners() -> None:
    red, blue = (caller({"groups": [group]}, tenants=TENANTS) for group in ("/red", "/blue"))
    assert red is not None
    assert blue is not None
    assert red[0] != blue[0]


@pytest.mark.promise("token-groups")
@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"groups": ["/red", "/blue"]}, "Your groups lead to several tenants: blue, red."),
        ({"groups": ["/green"]}, "The claim groups of your token has no group that leads to a tenant."),
        ({"groups": []}, "has no group"),
        ({"groups": {"/red": True}}, "has no group"),
        ({"groups": ["/RED", "/red "]}, "has no group"),
        ({}, "has no group"),
    ],
    ids=str,
)
def test_user_of_no_tenant_or_of_several_is_refused(claims: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError) as refused:
        caller(claims, tenants=TENANTS, admin_groups=("/green",))
    assert refused.value.error.code is ErrorCode.FORBIDDEN
    assert sentence in refused.value.error.message


@pytest.mark.promise("token-groups")
@pytest.mark.parametrize(
    ("groups", "tenant"),
    [
        (["team-blue"], "blue"),
        (["team-blue", "staff"], "blue"),
        (["/red", "team-red"], "red"),
        (["team-other"], "red"),  # by its entry, which comes first
        (["team-Blue"], None),
        (["team-"], None),
        (["team-blue\n"], None),
        (["xteam-blue"], None),
        (["team-" + "a" * 64], None),
        (["team-a.b"], None),
        (["team-" + "a" * 300], None),
        (["team-blue", "team-green"], None),
    ],
    ids=str,
)
def test_pattern_leads_groups_to_tenants(groups: list[str], tenant: str | None) -> None:
    more: dict[str, Any] = {"tenants": {"/red": "red", "team-other": "red"}, "tenant_pattern": "team-(.+)"}
    if tenant is None:
        with pytest.raises(RefusedError):
            caller({"groups": groups}, **more)
    else:
        assert caller({"groups": groups}, **more) == (owner_of(tenant, "alice"), tenant, "user")


def test_part_of_a_pattern_that_matches_nothing_leads_to_no_tenant() -> None:
    with pytest.raises(RefusedError, match="no group that leads to a tenant"):
        caller({"groups": ["all"]}, tenant_pattern="team-(.+)|all")


def test_without_tenants_groups_give_roles_alone() -> None:
    assert caller({"roles": ["ops"]}, groups_claim="roles", admin_groups=("ops",)) == ("user:alice", "", "admin")
    assert caller({"groups": ["ops"]}, groups_claim="roles", admin_groups=("ops",)) == ("user:alice", "", "user")


def test_administrators_of_a_tenant_have_both() -> None:
    found = caller({"groups": ["/red", "/red/lead"]}, tenants=TENANTS, admin_groups=("/red/lead",))
    assert found == (owner_of("red", "alice"), "red", "admin")


@pytest.mark.promise("tokens-verified")
@pytest.mark.parametrize("claim", [None, "evil.example.com", ["evil.example.com"], True, {"example.com": 1}], ids=str)
def test_required_claim_has_one_of_its_values(claim: object) -> None:
    required = {"hd": ("example.com", "example.org")}
    assert caller({"hd": "example.org"}, required_claims=required) is not None
    assert caller({"hd": claim}, required_claims=required) is None
    assert caller({}, required_claims=required) is None


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"proxy": {}}, "client_id"),
        ({"introspection": {}, "client_id": "sandpod"}, "client_secret_file"),
        ({"issuer": "https://accounts.google.com"}, "required_claims"),
        ({"tenants": {"/red": "Not A Name"}}, "tenants"),
        ({"tenants": {"": "red"}}, "tenants"),
        ({"tenant_pattern": "team-.+"}, "in parentheses"),
        ({"tenant_pattern": "team-("}, "no regular expression"),
        ({"introspection": {"endpoint": "http://login.example.com/introspect"}}, "https"),
    ],
    ids=str,
)
def test_settings_that_can_not_work_or_let_everybody_in_are_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        OidcSettings.model_validate({"issuer": "https://login.example.com"} | more)


def test_a_provider_for_everybody_is_taken_with_a_bound() -> None:
    bounds = {"required_claims": {"hd": ("example.com",)}, "tenants": {"/red": "red"}, "tenant_pattern": "(.+)"}
    for bound in ({name: value} for name, value in bounds.items()):
        OidcSettings.model_validate({"issuer": "https://accounts.google.com"} | bound)
