"""SandboxTenants as a gateway reads and makes them, with a client in memory."""

from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_api.conditions import Reason
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.first_use import TenantState
from sandpod_gateway.backends.kubernetes import tenants
from sandpod_gateway.backends.kubernetes.tenants import SandboxTenants
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import ConflictError, DeniedError, UnreachableError
from sandpod_kube.resources import Resource

if TYPE_CHECKING:
    from sandpod_gateway.backends.kubernetes.cluster import Cluster


class Client:
    """Has a tenant, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.created: list[Any] = []

    async def create(self, resource: Resource, body: dict[str, Any], namespace: str) -> None:
        self.created.append((resource.plural, namespace, body["metadata"]["name"]))
        if self.error is not None:
            raise self.error


def source(client: Client) -> SandboxTenants:
    cluster = cast("Cluster", SimpleNamespace(client=client))
    return SandboxTenants(lambda: cluster, "release", 90)


async def test_tenant_that_somebody_else_asked_for_is_there_all_the_same() -> None:
    for client, is_new in ((Client(), True), (Client(ConflictError(409, "AlreadyExists")), False)):
        assert await source(client).make("red") == is_new
        assert client.created == [("sandboxtenants", "release", "red")]


@pytest.mark.parametrize("error", [DeniedError(403, "Forbidden", "no right in release"), UnreachableError("none")])
async def test_failure_says_nothing_of_the_cluster(error: Exception) -> None:
    with pytest.raises(SandpodError) as failed:
        await source(Client(error)).make("red")
    assert failed.value.code == ErrorCode.BACKEND_UNAVAILABLE
    assert "release" not in f"{failed.value.message} {failed.value.next_step}"


def tenant(name: str, reason: Reason | None, namespace: str | None = None) -> dict[str, Any]:
    status = "True" if reason is Reason.PROVISIONED else "False"
    ready = [] if reason is None else [{"type": "Ready", "status": status, "reason": reason}]
    return {"metadata": {"name": name}, "spec": {}, "status": {"conditions": ready, "namespace": namespace}}


async def test_what_there_is_has_a_place_or_is_refused_or_is_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        tenant("made", Reason.PROVISIONED, "sbx-made"),
        tenant("partly", Reason.PROVISIONING_FAILED, "sbx-partly"),
        tenant("failing", Reason.PROVISIONING_FAILED),
        tenant("new", None),
        *(tenant(r.lower(), r) for r in (Reason.NAMESPACE_TAKEN, Reason.NAME_TOO_LONG, Reason.TOO_MANY_TENANTS)),
        {"metadata": {"name": "of-another-version"}, "spec": {}, "status": {"conditions": "none"}},
    ]

    async def follow(_: Client, __: Resource, namespace: str, *___: object, **____: object) -> AsyncIterator[Any]:
        assert namespace == "release"
        yield listed
        raise UnreachableError("the watch broke")

    seen: list[Mapping[str, TenantState]] = []
    monkeypatch.setattr(tenants, "follow", follow)
    with pytest.raises(SandpodError):
        await source(Client()).follow(seen.append)
    [found] = seen
    assert found == {
        "made": TenantState("sbx-made"),
        "partly": TenantState("sbx-partly"),
        "failing": TenantState(),
        "new": TenantState(),
        "of-another-version": TenantState(),
        **{name: TenantState(None, refused=True) for name in ("namespacetaken", "nametoolong", "toomanytenants")},
    }
