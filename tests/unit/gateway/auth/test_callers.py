"""To whom sandboxes belong: no two users of any two tenants are one owner."""

import itertools

import pytest

from sandpod_gateway.auth.callers import LOCAL, owner_of, tenant_of

TENANTS = ("", "a", "b", "a-b", "user", "tenant", "local")
USERS = (
    "alice",
    "a",
    "local",
    "",
    ":",
    "user:alice",
    "tenant:a:user:alice",
    "a:user:alice",
    "user:",
    "tenant:",
    "/",
    "é",
)


@pytest.mark.promise("tenants-apart")
def test_owners_are_one_for_each_tenant_and_user() -> None:
    pairs = list(itertools.product(TENANTS, USERS))
    owners = [owner_of(tenant, user) for tenant, user in pairs]
    assert len({*owners, LOCAL.owner}) == len(owners) + 1
    assert [tenant_of(owner) for owner in owners] == [tenant for tenant, _ in pairs]
    assert tenant_of(LOCAL.owner) == ""


def test_owner_without_a_tenant_is_the_user() -> None:
    assert owner_of("", "alice") == "user:alice"
