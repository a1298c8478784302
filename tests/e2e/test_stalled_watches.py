"""Connections to the API server that stall and are not closed: the operator and a gateway notice and go on.

Nothing but the watches can tell here what changes: full lists are an hour apart.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from sandpod_api.names import LABEL_MANAGED_BY, LEASE_LEADER, MANAGED_BY
from sandpod_gateway.auth.callers import LOCAL
from support.cluster.callers import Caller
from support.cluster.cluster import until
from support.cluster.server import serving
from support.operator.process import Objects, OperatorProcess, now, running
from support.servers.stalling import Stall, StallingProxy

HOWS: tuple[Stall, ...] = get_args(Stall)
IMPATIENT = {
    "WATCH_SILENCE": "2",
    "HEARTBEAT_INTERVAL": "2",
    "REQUEST_TIMEOUT": "2",
    "RESYNC_INTERVAL": "3600",
    "STATUS_DELAY": "0",
}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[StallingProxy]:
    with StallingProxy(tmp_path / "kubeconfig") as made:
        yield made


@pytest.fixture
def operator(
    objects: Objects, proxy: StallingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OperatorProcess]:
    with monkeypatch.context() as patched:
        patched.setenv("KUBECONFIG", str(proxy.kubeconfig))
        started = running(tmp_path / "log", objects.namespace, **IMPATIENT)
        operator = started.__enter__()
    yield operator
    started.__exit__(None, None, None)


@pytest.mark.usefixtures("full_disk")
async def test_operator_and_gateway_notice_what_happened_while_their_watches_stalled(
    objects: Objects, proxy: StallingProxy, operator: OperatorProcess
) -> None:
    await objects.template()
    await objects.sandbox("first")
    await objects.phase("first", "Ready")
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", objects.namespace]
    flags += ["--kubernetes.kubeconfig", str(proxy.kubeconfig), "--kubernetes.watch-silence", "2"]
    async with serving(*flags) as (url, _), Caller(url, None).connect() as session:
        for number, how in enumerate(HOWS, start=1):
            stalled = proxy.stall(how)
            claim = {"owner": LOCAL.owner, "session": how, "time": now()}
            await objects.sandbox(how, templateRef={"name": "missing"}, claim=claim)
            await objects.patch("sandboxes", how, {"metadata": {"labels": {LABEL_MANAGED_BY: MANAGED_BY}}})
            if how == "both":
                await objects.delete("pods", "first", grace=1)
                await objects.reason("first", "NodeLost", within=60)
            await objects.reason(how, "TemplateNotFound", within=60)

            async def seen(number: int = number) -> bool:
                return len((await session.call("list_sandboxes"))["sandboxes"]) == number

            if how != "answers":  # To a watch, which asks nothing more, that is the same as both.
                await until(f"the gateway sees {how}", seen, within=60)
            assert stalled.kept()
            # All of it works again before the next: also the Lease, whose holder it has been all the time.
            await renewed(objects)
    assert operator.get("/readyz") == "active\n"
    assert operator.get("/healthz") == "ok\n"
    assert await lease(objects, "leaseTransitions") == "1"
    # It gives the Lease back at its end, so that a standby need not wait until it has run out.
    assert await asyncio.to_thread(operator.stop) == 0
    assert await lease(objects, "holderIdentity") == ""


async def lease(objects: Objects, field: str) -> str:
    return str((await objects.cluster.get("leases", LEASE_LEADER))["spec"][field])


async def renewed(objects: Objects) -> None:
    before = await lease(objects, "renewTime")

    async def later() -> bool:
        return await lease(objects, "renewTime") > before

    await until("the Lease is renewed", later, within=60)
