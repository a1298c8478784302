"""The Kubernetes backend over HTTP and WebSockets, against a small API server of the tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp.test_utils import unused_port
from cachetools import TTLCache

from sandpod_api import names
from sandpod_api.base import rfc3339
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes import backend as kubernetes_module
from sandpod_gateway.backends.kubernetes.backend import KubernetesBackend
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.streams import warm_streams
from sandpod_gateway.backends.kubernetes.streams.exec_stream import ExecStream
from sandpod_gateway.errors import SandpodError, StartError
from support.gateway.kube_objects import body, held_by, not_ready
from support.servers.kube_server import KubeServer, serve, write_kubeconfig

LIMIT = 60.0


@pytest.fixture
def kube() -> KubeServer:
    return KubeServer()


@pytest.fixture
async def kubeconfig(kube: KubeServer, tmp_path: Path) -> AsyncIterator[Path]:
    async with serve(kube, tmp_path) as path:
        yield path


@pytest.fixture
async def backend(kubeconfig: Path) -> AsyncIterator[KubernetesBackend]:
    backend = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, warm_streams=1))
    await backend.start()
    yield backend
    await backend.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110 # what is waited for has no event of its own
            await asyncio.sleep(0.001)


async def seen(backend: KubernetesBackend, name: str) -> None:
    await until(lambda: backend._store.get(name) is not None)


async def refusal(kubeconfig: Path, *, scale_pools: bool = False) -> StartError:
    backend = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, scale_pools=scale_pools))
    with pytest.raises(StartError) as refused:
        await asyncio.wait_for(backend.start(), LIMIT)
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE
    assert refused.value.next_step
    return refused.value


async def test_a_claim_takes_no_thread(
    kube: KubeServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait its turn on a busy machine."""

    async def refused(*_: object) -> None:
        raise AssertionError("a thread was asked for")

    kube.show("ADDED", body("w"))
    await until(lambda: backend.warm() == {("", "default"): 1})
    monkeypatch.setattr(asyncio, "to_thread", refused)
    assert (await backend.claim(ClaimRequest(owner="alice"))).name == "w"


@pytest.mark.parametrize("seconds", [(300, 1), (1, 300)])
async def test_later_end_of_two_background_runs_that_begin_at_once_stays(
    kube: KubeServer, backend: KubernetesBackend, seconds: tuple[float, float]
) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    await seen(backend, "s")
    late = rfc3339(datetime.now(UTC) + timedelta(seconds=250))
    await asyncio.gather(*(backend.keep_busy("s", each) for each in seconds))
    metadata = kube.api.objects["s"]["metadata"]
    assert metadata["annotations"][names.ANNOTATION_BUSY_UNTIL] > late
    # Those that begin soon after are within it, and cost no write.
    await backend.keep_busy("s", 310)
    assert kube.api.objects["s"]["metadata"]["resourceVersion"] == metadata["resourceVersion"]
    await backend.keep_busy("s", 400)
    assert kube.api.objects["s"]["metadata"]["resourceVersion"] != metadata["resourceVersion"]


async def test_a_sandbox_is_suspended_and_its_lifetime_changed_in_its_resource(
    kube: KubeServer, backend: KubernetesBackend
) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    await seen(backend, "s")
    record = await backend.set_lifetime("s", ttl=900, idle_timeout=800)
    assert (record.ttl, record.idle_timeout) == (900, 800)
    await backend.suspend("s")
    await backend.suspend("none")
    found = await backend.get("s")
    assert found is not None
    assert found.status == "Suspended"
    spec = kube.api.objects["s"]["spec"]
    assert (spec["lifetime"], spec["operatingMode"]) == ({"ttl": 900, "idleTimeout": 800}, "Suspended")
    with pytest.raises(SandpodError) as refused:
        await backend.set_lifetime("none", ttl=60, idle_timeout=60)
    assert refused.value.code == ErrorCode.SESSION_NOT_FOUND


async def test_a_sandboxs_conditions_and_events_are_told_and_none_where_they_may_not_be_read(
    kube: KubeServer, backend: KubernetesBackend
) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    kube.show("ADDED", body("t", claim=held_by("bob")))
    await seen(backend, "t")
    record = await backend.get("s")
    assert record is not None
    assert [each.type for each in record.conditions] == ["Ready"]
    assert [each.name for each in await backend.every()] == ["s", "t"]
    about = {"kind": "Sandbox", "name": "s", "uid": kube.api.objects["s"]["metadata"]["uid"]}
    of = {"involvedObject": about, "reason": "Ready", "message": "It runs."}
    kube.told = [
        {**of, "lastTimestamp": "2026-11-30T10:00:01Z", "type": "Warning", "count": 3, "message": "x" * 5000},
        {**of, "lastTimestamp": None, "eventTime": "2026-11-30T10:00:00.5Z"},
        {**of, "involvedObject": {**about, "uid": "of one before"}},
        {"involvedObject": about, "lastTimestamp": "never", "count": "many"},
    ]
    told = [
        (each.time, each.reason, len(each.message), each.is_warning, each.count) for each in await backend.events("s")
    ]
    at = datetime(2026, 11, 30, 10, tzinfo=UTC)
    assert told == [
        (None, "", 0, False, 1),
        (at + timedelta(seconds=0.5), "Ready", 8, False, 1),
        (at + timedelta(seconds=1), "Ready", 1024, True, 3),
    ]
    kube.denied = {"list events"}
    assert await backend.events("s") == await backend.events("none") == ()


async def test_a_start_without_a_kubeconfig_says_so(tmp_path: Path) -> None:
    assert "no cluster to use" in (await refusal(tmp_path / "none")).message


async def test_a_start_without_a_cluster_says_so(tmp_path: Path) -> None:
    address = f"127.0.0.1:{unused_port()}"
    error = await refusal(write_kubeconfig(tmp_path / "kubeconfig", f"http://{address}"))
    assert "can't be reached" in error.message
    assert error.cause == f"no answer from http://{address}: can't connect"


async def test_a_start_that_gets_no_answer_ends_in_time(
    kube: KubeServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_module, "START_TIMEOUT", 0.05)
    kube.api.answer_after["list"] = asyncio.Event()
    assert "no answer" in ((await refusal(kubeconfig)).cause or "")


async def test_a_start_without_the_resources_says_how_to_install_them(kube: KubeServer, kubeconfig: Path) -> None:
    kube.broken["sandboxtemplates"] = 404
    assert "crds.yaml" in (await refusal(kubeconfig)).next_step


async def test_a_start_without_rights_names_each_that_is_missing(kube: KubeServer, kubeconfig: Path) -> None:
    kube.denied = {"patch sandboxes", "create pods"}
    error = await refusal(kubeconfig)
    assert "may not patch sandboxes, create pods/exec in namespace tests" in error.message


async def test_a_start_with_bad_credentials_says_so(kube: KubeServer, kubeconfig: Path) -> None:
    kube.broken["sandboxtemplates"] = 401
    assert "credentials" in (await refusal(kubeconfig)).next_step


@pytest.mark.promise("tenants-unaffected")
async def test_a_start_can_be_tried_again_after_one_that_failed(kube: KubeServer, kubeconfig: Path) -> None:
    backend = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, warm_streams=0))
    kube.broken["sandboxtemplates"] = 403
    with pytest.raises(StartError):
        await backend.start()
    del kube.broken["sandboxtemplates"]
    await backend.start()
    kube.show("ADDED", body("w"))
    await until(lambda: backend.warm() == {("", "default"): 1})
    assert (await backend.claim(ClaimRequest(owner="alice"))).name == "w"
    await backend.close()


async def test_the_kubeconfigs_token_goes_with_every_request(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: kube.execs == ["w"])
    await backend.check()
    assert kube.tokens == {"Bearer a-token"}


async def test_a_check_fails_while_the_cluster_does(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.broken["sandboxtemplates"] = 500
    with pytest.raises(SandpodError) as refused:
        await backend.check()
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE


async def test_claims_with_a_session_are_one_request_each(kube: KubeServer, backend: KubernetesBackend) -> None:
    for name in ("a", "b"):
        kube.show("ADDED", body(name))
    await until(lambda: backend.warm() == {("", "default"): 2})
    kube.api.requests.clear()
    records = [await backend.claim(ClaimRequest(owner="alice", session=session)) for session in ("one", "two", "one")]
    assert records[0].name == records[2].name != records[1].name
    assert kube.api.requests == ["patch", "patch"]


async def test_a_claim_gets_the_stream_that_is_open_already_and_a_second_one_is_new(
    kube: KubeServer, backend: KubernetesBackend
) -> None:
    kube.show("ADDED", body("without"))
    await until(lambda: kube.execs == ["without"])
    kube.show("ADDED", body("later"))
    await seen(backend, "later")
    record = await backend.claim(ClaimRequest(owner="alice"))
    assert record.name == "without"
    first = await backend.open_stream(record.name)
    await until(lambda: kube.execs == ["without", "later"])
    await first.write(b"hello")
    assert await first.read() == b"hello"
    second = await backend.open_stream(record.name)
    assert kube.execs == ["without", "later", "without"]
    await asyncio.gather(first.close(), second.close())


async def test_a_warm_stream_that_died_is_not_handed_out(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: backend._open.streams.names() == {"w"})
    held = backend._open.streams._held["w"]
    await backend.claim(ClaimRequest(owner="alice"))
    await kube.cut_execs()
    await until(lambda: held.ended)
    stream = await backend.open_stream("w")
    await stream.write(b"x")
    assert await stream.read() == b"x"
    await stream.close()


async def test_the_stream_of_a_sandbox_that_others_took_is_closed(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: backend._open.streams.names() == {"w"})
    held = backend._open.streams._held["w"]
    kube.show("MODIFIED", body("w", claim=held_by("bob")))
    await until(lambda: held.ended)
    assert backend._open.streams.names() == set()


class SlowClose:
    """The closing of a held stream, which ends when it is let go on."""

    def __init__(self, stream: ExecStream, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._close = stream.close
        monkeypatch.setattr(stream, "close", self)

    async def __call__(self) -> None:
        self.begun.set()
        await self.go_on.wait()
        await self._close()
        self.ended.set()


async def test_a_stream_that_is_being_closed_when_the_backend_closes_is_closed_all_the_same(
    kube: KubeServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.show("ADDED", body("w"))
    await until(lambda: backend._open.streams.names() == {"w"})
    slow = SlowClose(backend._open.streams._held["w"], monkeypatch)
    kube.show("MODIFIED", body("w", claim=held_by("bob")))
    await asyncio.wait_for(slow.begun.wait(), LIMIT)
    closing = asyncio.create_task(backend.close())
    await asyncio.sleep(0)
    slow.go_on.set()
    await closing
    assert slow.ended.is_set()


async def test_a_stream_is_handed_out_or_closed_and_never_both(
    kube: KubeServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    streams = backend._open.streams
    streams.limit = 2
    for name in ("v", "w"):
        kube.show("ADDED", body(name))
    await until(lambda: streams.names() == {"v", "w"})
    slow = {name: SlowClose(stream, monkeypatch) for name, stream in streams._held.items()}
    for name in ("v", "w"):
        kube.show("MODIFIED", body(name, claim=held_by("bob")))
    await until(lambda: any(one.begun.is_set() for one in slow.values()))
    [closed] = [name for name, one in slow.items() if one.begun.is_set()]
    other = {"v": "w", "w": "v"}[closed]
    assert streams.take(closed) is None
    taken = streams.take(other)
    assert taken is not None
    for one in slow.values():
        one.go_on.set()
    await until(lambda: streams._under_way is None)
    assert slow[closed].ended.is_set()
    assert not slow[other].begun.is_set()
    assert "failed" not in caplog.text
    await taken.close()


async def test_a_stream_nobody_fetched_is_closed(
    kube: KubeServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend._open.streams, "_promised", TTLCache(1, ttl=0))
    monkeypatch.setattr(warm_streams, "LOOK_AGAIN", 0.01)
    kube.show("ADDED", body("w"))
    await until(lambda: backend._open.streams.names() == {"w"})
    await backend.claim(ClaimRequest(owner="alice"))
    await until(lambda: backend._open.streams.names() == set())


async def test_a_sandbox_whose_pod_is_gone_is_lost(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    await seen(backend, "s")
    del kube.api.objects["s"]
    with pytest.raises(SandpodError) as refused:
        await backend.open_stream("s")
    assert refused.value.code == ErrorCode.SANDBOX_LOST


@pytest.mark.parametrize(
    ("conditions", "phase", "code"),
    [
        ([not_ready("PodFailed", "exit code 1")], "Failed", ErrorCode.SANDBOX_LOST),
        ([not_ready("Starting")], "Pending", ErrorCode.BACKEND_UNAVAILABLE),
    ],
)
async def test_a_sandbox_that_is_not_ready_gets_no_stream(
    kube: KubeServer, backend: KubernetesBackend, conditions: list[dict[str, str]], phase: str, code: ErrorCode
) -> None:
    held = body("s", claim=held_by("alice"))
    held["status"] = {"phase": phase, "conditions": conditions}
    kube.show("ADDED", held)
    await seen(backend, "s")
    with pytest.raises(SandpodError) as refused:
        await backend.open_stream("s")
    assert refused.value.code == code
    assert kube.execs == []


@pytest.mark.parametrize("status", [403, 500])
async def test_an_exec_that_is_refused_is_told_as_the_clusters_fault(
    kube: KubeServer, backend: KubernetesBackend, status: int
) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    await seen(backend, "s")
    kube.broken["/exec"] = status
    with pytest.raises(SandpodError) as refused:
        await backend.open_stream("s")
    assert refused.value.code == ErrorCode.BACKEND_UNAVAILABLE


async def test_warm_sandboxes_and_strange_names_are_nobodys(kube: KubeServer, backend: KubernetesBackend) -> None:
    kube.show("ADDED", body("w"))
    await seen(backend, "w")
    for name in ("w", "", "../w", "w?x=y", "W", "ü"):
        assert await backend.get(name) is None
        await backend.delete(name)
        await backend.touch(name)
        with pytest.raises(SandpodError) as refused:
            await backend.open_stream(name)
        assert refused.value.code == ErrorCode.SESSION_NOT_FOUND
    assert backend.warm() == {("", "default"): 1}
    assert set(kube.api.objects) == {"w"}


async def test_a_deleted_sandbox_is_gone_at_once_and_can_be_deleted_again(
    kube: KubeServer, backend: KubernetesBackend
) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    await seen(backend, "s")
    await backend.delete("s")
    assert await backend.get("s") is None
    assert await backend.list("alice") == []
    await backend.delete("s")
    assert kube.api.requests.count("delete") == 1


async def test_use_is_noted_once_in_an_interval_and_not_right_after_a_claim(
    kube: KubeServer, backend: KubernetesBackend
) -> None:
    kube.show("ADDED", body("s", claim=held_by("alice")))
    kube.show("ADDED", body("w"))
    await seen(backend, "w")
    record = await backend.claim(ClaimRequest(owner="alice"))
    for _ in range(5):
        await backend.touch("s")
        await backend.touch(record.name)
    await backend._background.close()
    assert [list(touch["metadata"]["annotations"]) for touch in kube.touches] == [[names.ANNOTATION_LAST_ACTIVITY]]


async def test_pools_are_listed_and_scaled_where_the_settings_allow_it(
    kube: KubeServer, backend: KubernetesBackend, kubeconfig: Path
) -> None:
    condition = {"type": "Available", "status": "False", "reason": "QuotaExceeded", "message": "No room."}
    kube.pools["small"] = {
        "metadata": {"name": "small", "namespace": "tests"},
        "spec": {"templateRef": {"name": "default"}, "replicas": 3},
        "status": {"replicas": 2, "readyReplicas": 1, "reason": "QuotaExceeded", "conditions": [condition]},
    }
    [pool] = await backend.pools("alice")
    assert (pool.claims.warm, pool.claims.cold, pool.claims.since) == (0, 0, None)  # an operator that does not count
    counted = {"warm": 9, "cold": 1, "since": "2026-01-01T00:00:00Z"}
    kube.pools["small"]["status"]["claims"] = counted
    [pool] = await backend.pools("alice")
    assert (pool.claims.warm, pool.claims.cold, pool.claims.since) == (9, 1, datetime(2026, 1, 1, tzinfo=UTC))
    assert (pool.name, pool.template, pool.replicas, pool.existing, pool.ready) == ("small", "default", 3, 2, 1)
    assert (pool.reason, [each.message for each in pool.conditions]) == ("QuotaExceeded", ["No room."])
    with pytest.raises(SandpodError) as refused:
        await backend.scale_pool("alice", "small", 5)
    assert refused.value.code == ErrorCode.FORBIDDEN
    scaling = KubernetesBackend(KubernetesSettings(kubeconfig=kubeconfig, warm_streams=0, scale_pools=True))
    await scaling.start()
    try:
        await scaling.scale_pool("alice", "small", 5)
        assert [pool.replicas for pool in await scaling.pools("alice")] == [5]
        for name in ("none", "small/status", "..", ""):
            with pytest.raises(SandpodError) as refused:
                await scaling.scale_pool("alice", name, 5)
            assert refused.value.code == ErrorCode.NOT_FOUND
    finally:
        await scaling.close()
    kube.denied = {"patch sandboxpools"}
    said = (await refusal(kubeconfig, scale_pools=True)).message
    assert said == "The gateway's account may not patch sandboxpools/scale in namespace tests."
