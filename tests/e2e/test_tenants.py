"""Two tenants in two namespaces, and a third one whose namespace goes away, behind one gateway's backend."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from support.cluster import writing
from support.gateway.backends import started
from support.gateway.peer import talk
from support.operator.process import Managed, namespace

ALICE, BOB, CAROL = owner_of("", "alice"), owner_of("b", "alice"), owner_of("gone", "carol")


@pytest.fixture
def gone() -> Iterator[str]:
    """The namespace of the tenant that goes away."""
    with namespace("gone") as space:
        yield space.sandboxes


@pytest.fixture
async def backend(managed_namespaces: Managed, gone: str) -> AsyncIterator[Backend]:
    first, second = (managed_namespaces.namespaces[part].namespace for part in ("same-first", "same-second"))
    settings = KubernetesSettings(
        namespace=first, tenants={"b": second, "gone": gone}, default_template="python", warm_streams=0
    )
    async with started(create_backend("kubernetes", kubernetes=settings)) as backend:
        yield backend


@pytest.mark.promise("tenants-apart", "tenants-unaffected")
async def test_each_tenants_sandboxes_are_in_its_namespace_and_one_that_goes_away_affects_no_other(
    backend: Backend, managed_namespaces: Managed, gone: str
) -> None:
    async def claimed(owner: str) -> SandboxRecord:
        return await backend.claim(ClaimRequest(owner=owner, session="tenants"))

    records = dict(zip((ALICE, BOB), await asyncio.gather(claimed(ALICE), claimed(BOB)), strict=True))
    for owner, part in ((ALICE, "same-first"), (BOB, "same-second")):
        record, objects = records[owner], managed_namespaces.namespaces[part]
        name = record.name.removeprefix("b.")
        assert (await objects.cluster.sandbox(name))["spec"]["claim"]["owner"] == owner
        assert await backend.get(record.name) == record
        assert [each.name for each in await backend.list(owner)] == [record.name]
        assert await backend.get(f"gone.{name}") is None
        # Nothing that a caller is told of it has a namespace's name.
        assert objects.namespace not in str(record)
    await asyncio.to_thread(writing.remove, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": gone}})
    with pytest.raises(SandpodError) as refused:
        await claimed(CAROL)
    assert refused.value.code in {ErrorCode.BACKEND_UNAVAILABLE, ErrorCode.INVALID_ARGUMENT}
    assert gone not in f"{refused.value.message} {refused.value.cause} {refused.value.next_step}"
    for owner, record in records.items():
        async with talk(backend, record.name) as peer:
            assert (await peer.output(f"print('{owner}')"))[0] == f"{owner}\n"
        await backend.delete(record.name)
        assert await backend.get(record.name) is None
