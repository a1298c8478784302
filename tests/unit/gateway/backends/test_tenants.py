"""Several tenants' backends behind one, in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import LOCAL, owner_of
from sandpod_gateway.backends import tenants
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_gateway.runner.run_ids import run_id, split_run_id
from sandpod_gateway.secrets.values import Secret

A, B, NOBODY = owner_of("a", "alice"), owner_of("b", "alice"), owner_of("", "alice")


class Broken(FakeBackend):
    """Does not start until it is told to."""

    works = False
    error: Exception = StartError(ErrorCode.BACKEND_UNAVAILABLE, "No.", next_step="Wait.")
    closed = 0

    async def start(self) -> None:
        if not self.works:
            raise self.error
        await super().start()

    async def close(self) -> None:
        self.closed += 1
        await super().close()


@pytest.fixture
async def parts() -> AsyncIterator[tuple[TenantBackend, FakeBackend, FakeBackend]]:
    a, b = FakeBackend(), FakeBackend()
    backend = TenantBackend(FakeBackend(), {"a": a, "b": b})
    await backend.start()
    yield backend, a, b
    await backend.close()


async def refused(backend: TenantBackend, owner: str) -> SandpodError:
    """Return what all calls of an owner are refused with."""
    calls: list[Any] = [backend.claim(ClaimRequest(owner=owner)), backend.list(owner), backend.templates(owner)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, SandpodError)]
    assert len(errors) == len(calls), results
    assert len({error.message for error in errors}) == 1
    return errors[0]


def retries() -> list[asyncio.Task[None]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("start of tenant")]


@pytest.mark.promise("tenants-apart")
async def test_sandboxes_of_one_name_in_two_tenants_are_two(
    parts: tuple[TenantBackend, FakeBackend, FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, a, b = parts
    monkeypatch.setattr("sandpod_gateway.backends.local.in_process.secrets.token_hex", lambda _: "same")
    first, second = [await backend.claim(ClaimRequest(owner=owner)) for owner in (A, B)]
    assert [record.name for each, owner in ((a, A), (b, B)) for record in await each.list(owner)] == ["sbx-same"] * 2
    assert first.name != second.name
    for record in (first, second):
        found = await backend.get(record.name)
        assert found is not None
        assert (found.name, found.owner) == (record.name, record.owner)
        assert [each.name for each in await backend.list(record.owner)] == [record.name]
        assert split_run_id(run_id(record.name, "run-1")) == (record.name, "run-1")
    await backend.delete(first.name)
    assert await backend.get(first.name) is None
    assert await backend.get(second.name) is not None
    assert backend.warm() == {(tenant, "default"): 0 for tenant in ("", "a", "b")}


async def test_name_without_a_tenants_before_it_is_the_default_tenants(
    parts: tuple[TenantBackend, FakeBackend, FakeBackend],
) -> None:
    backend, _, _ = parts
    record = await backend.claim(ClaimRequest(owner=A))
    own = await backend.claim(ClaimRequest(owner=LOCAL.owner))
    inner = record.name.removeprefix("a.")
    for name in (inner, f".{inner}", f"b.{inner}", f"c.{inner}", f"a.a.{inner}", f"a.{own.name}", f".{own.name}", "a."):
        assert await backend.get(name) is None, name
    assert await backend.get(own.name) == own


@pytest.mark.promise("tenants-apart")
async def test_sandbox_whose_owner_is_of_another_tenant_than_its_namespace_is_nobodys(
    parts: tuple[TenantBackend, FakeBackend, FakeBackend],
) -> None:
    backend, a, _ = parts
    for owner in (B, NOBODY):
        made = await a.claim(ClaimRequest(owner=owner))
        assert await backend.get(f"a.{made.name}") is None


async def test_unknown_tenant_is_refused_and_nothing_is_made(
    parts: tuple[TenantBackend, FakeBackend, FakeBackend],
) -> None:
    backend, a, b = parts
    error = await refused(backend, owner_of("c", "alice"))
    assert (error.code, error.message) == (ErrorCode.FORBIDDEN, "This server has no tenant c.")
    assert not a.launcher.cells + b.launcher.cells


async def test_caller_without_a_tenant_has_the_default_one_unless_a_tenant_is_required() -> None:
    for required in (False, True):
        backend = TenantBackend(FakeBackend(), {"a": FakeBackend()}, required=required)
        await backend.start()
        if required:
            assert (await refused(backend, NOBODY)).code == ErrorCode.FORBIDDEN
        else:
            assert (await backend.claim(ClaimRequest(owner=NOBODY))).name.startswith("sbx-")
        await backend.close()


@pytest.mark.promise("tenants-unaffected")
@pytest.mark.parametrize("error", [Broken.error, ValueError("what nobody expects")])
async def test_tenant_that_does_not_start_is_tried_again_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(tenants, "RETRY_SECONDS", 0.001)
    broken = Broken()
    broken.error = error
    backend = TenantBackend(FakeBackend(), {"a": broken, "b": FakeBackend()})
    await backend.start()
    [retry] = retries()
    assert (await refused(backend, A)).code == ErrorCode.BACKEND_UNAVAILABLE
    assert (await backend.claim(ClaimRequest(owner=B))).status == "Ready"
    await backend.check()
    broken.works = True
    async with asyncio.timeout(60):
        await retry
    assert (await backend.claim(ClaimRequest(owner=A))).status == "Ready"
    await backend.close()
    assert broken.closed == 1


async def test_close_ends_what_is_still_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "RETRY_SECONDS", 0.001)
    broken = Broken()
    backend = TenantBackend(FakeBackend(), {"a": broken})
    await backend.start()
    assert len(retries()) == 1
    await backend.close()
    assert retries() == []
    assert broken.closed == 0


async def test_default_tenant_that_does_not_start_is_an_error() -> None:
    with pytest.raises(StartError):
        await TenantBackend(Broken(), {"a": FakeBackend()}).start()


async def test_secrets_are_read_where_the_sandbox_or_template_is(
    parts: tuple[TenantBackend, FakeBackend, FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, a, b = parts
    for each, value in ((a, "value-of-a"), (b, "value-of-b")):
        monkeypatch.setattr(each, "secret_source", lambda value=value: _Found(value))
    source = backend.secret_source()
    for name, value in (("a.x", "value-of-a"), ("b.x", "value-of-b")):
        assert [secret.value for secret in await source.of_session(name)] == [value]
        assert [secret.value for secret in await source.of_claim(name)] == [value]
        assert [secret.value for secret in await source.of_template(name) or ()] == [value]


class _Found:
    def __init__(self, value: str) -> None:
        self.value = value

    async def of_session(self, sandbox: str) -> tuple[Secret, ...]:
        assert sandbox == "x"
        return (Secret(name="A", value=self.value),)

    async def of_claim(self, sandbox: str) -> tuple[Secret, ...]:
        return await self.of_session(sandbox)

    async def of_template(self, template: str) -> tuple[Secret, ...] | None:
        return await self.of_session(template)
