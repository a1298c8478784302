import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_gateway.backends.kubernetes.cache import sandbox_cache
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore, SandboxWatch
from sandpod_kube.errors import RefusedError, UnreachableError
from sandpod_kube.resources import Resource
from support.gateway.kube_objects import Json, body, held_by, not_ready

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient

LIMIT = 60.0
MINE = held_by("alice", "one")


def warm_names(store: SandboxStore) -> set[str]:
    return {found.metadata.name for found in store.warm("default")}


def version(store: SandboxStore, name: str) -> str | None:
    found = store.get(name)
    return found.metadata.resource_version if found else None


def test_an_own_claim_counts_at_once_and_older_news_does_not_undo_it() -> None:
    store = SandboxStore()
    store.take(body("w", version="1"))
    store.take(body("w", claim=MINE, version="3"))
    assert warm_names(store) == set()
    assert [found.metadata.name for found in store.owned("alice")] == ["w"]
    store.take(body("w", version="2"))
    assert version(store, "w") == "3"
    store.take(body("w", claim=MINE, version="3"))
    store.take(body("w", claim=MINE, version="4"))
    assert version(store, "w") == "4"


def test_news_that_overtook_the_answer_is_not_overwritten_by_it() -> None:
    store = SandboxStore()
    store.take(body("w", version="1"))
    store.take(body("w", claim=MINE, version="2"))
    store.take(body("w", claim=MINE, version="3"))
    store.take(body("w", claim=MINE, version="2"))
    assert version(store, "w") == "3"


def test_a_sandbox_that_was_made_is_there_before_the_watch_tells() -> None:
    store = SandboxStore()
    store.take(body("new", claim=MINE))
    assert store.live("alice") == 1
    store.remove("new", "uid-new")
    assert store.get("new") is None
    assert store.live("alice") == store.live_total == 0


def test_a_deleted_sandbox_stays_away_whatever_the_watch_still_tells_of_it() -> None:
    store = SandboxStore()
    store.take(body("s", claim=MINE, version="1"))
    store.remove("s")
    assert store.get("s") is None
    assert store.owned("alice") == []
    store.take(body("s", claim=MINE, version="2"))
    assert store.get("s") is None
    store.remove("s", "uid-s")
    again = body("s", version="5")
    again["metadata"]["uid"] = "another"
    store.take(again)
    assert version(store, "s") == "5"


def test_a_late_answer_does_not_bring_a_deleted_sandbox_back() -> None:
    store = SandboxStore()
    store.take(body("w", version="1"))
    store.remove("w", "uid-w")
    store.take(body("w", claim=MINE, version="2"))
    assert store.get("w") is None


def test_a_deletion_of_the_old_one_does_not_remove_a_new_one_of_the_same_name() -> None:
    store = SandboxStore()
    store.take(body("s"))
    store.remove("s", "uid-of-an-older-one")
    assert version(store, "s") == "1"


def test_a_list_replaces_all_but_later_own_writes() -> None:
    store = SandboxStore()
    store.take(body("gone"))
    store.take(body("early", claim=MINE))
    with store.listing() as listing:
        store.take(body("late", claim=MINE))
        store.take(body("listed"), listing)
    assert [store.get(name) is not None for name in ("gone", "early", "late", "listed")] == [False, False, True, True]


def test_what_can_be_claimed_is_known_by_template() -> None:
    store = SandboxStore()
    store.take(body("a"))
    store.take(body("b", conditions=[not_ready("Starting")]))
    assert warm_names(store) == {"a"}
    store.take(body("b", version="2"))
    assert store.warm_counts() == {"default": 2}
    store.remove("a", "uid-a")
    store.take(body("b", claim=MINE, version="3"))
    assert store.warm_counts() == {"default": 0}
    assert store.warm("no-such") == []


async def test_a_wait_looks_again_after_each_change_and_gives_up_in_time() -> None:
    store = SandboxStore()
    waiting = asyncio.create_task(store.until(lambda: version(store, "w"), LIMIT))
    await asyncio.sleep(0)
    store.take(body("other"))
    store.take(body("w", version="7"))
    assert await waiting == "7"
    assert await store.until(lambda: version(store, "no-such"), 0) is None


class Script:
    """A source that gives what a test wrote down, then stays silent."""

    def __init__(self, lists: list[Any], watches: list[list[Any]]) -> None:
        self.lists = lists
        self.watches = watches
        self.asked: list[str] = []
        self.silent = asyncio.Event()

    async def list_page(self, resource: Resource, namespace: str, query: dict[str, str]) -> Json:
        assert (resource.plural, namespace) == ("sandboxes", "tests")
        self.asked.append(f"list {query.get('continue', '')}".strip())
        page = self.lists.pop(0)
        if isinstance(page, Exception):
            raise page
        assert isinstance(page, dict)
        return page

    async def watch(
        self, resource: Resource, namespace: str, query: dict[str, str], resource_version: str, *, silence: float
    ) -> AsyncGenerator[Json, None]:
        assert (resource.plural, namespace, silence) == ("sandboxes", "tests", 70)
        assert query == {"labelSelector": "app.kubernetes.io/managed-by=sandpod"}
        self.asked.append(f"watch {resource_version}")
        if not self.watches:
            self.silent.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


def page(*items: Json, version: str = "10", more: str = "") -> Json:
    return {"items": list(items), "metadata": {"resourceVersion": version, "continue": more}}


def event(kind: str, changed: Json) -> Json:
    return {"type": kind, "object": changed}


def a_watch(script: Script, store: SandboxStore) -> SandboxWatch:
    return SandboxWatch(cast("KubeClient", script), "tests", store, silence=70)


@asynccontextmanager
async def watched(script: Script) -> AsyncIterator[SandboxStore]:
    """Run the script to its end."""
    store = SandboxStore()
    watch = a_watch(script, store)
    await watch.start()
    try:
        await asyncio.wait_for(script.silent.wait(), LIMIT)
        yield store
    finally:
        await watch.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_cache, "BACK_OFF", (0.0,))


async def test_all_pages_of_the_list_and_then_the_changes_are_taken() -> None:
    script = Script(
        [page(body("a"), more="next"), page(body("b"), version="11")],
        [[event("ADDED", body("c", version="12")), event("DELETED", body("a", version="13"))]],
    )
    async with watched(script) as store:
        assert warm_names(store) == {"b", "c"}
    assert script.asked == ["list", "list next", "watch 11", "watch 13"]


async def test_a_watch_that_ends_goes_on_at_the_last_bookmark() -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    script = Script([page(body("a"))], [[bookmark], []])
    async with watched(script) as store:
        assert warm_names(store) == {"a"}
    assert script.asked == ["list", "watch 10", "watch 50", "watch 50"]


async def test_it_is_known_how_far_the_watch_has_come() -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    async with watched(Script([page(version="10")], [])) as store:
        assert (store.has_reached("10"), store.has_reached("11")) == (True, False)
    async with watched(Script([page()], [[event("ADDED", body("a", version="20"))]])) as store:
        assert (store.has_reached("20"), store.has_reached("21"), store.has_reached("opaque")) == (True, False, False)
    async with watched(Script([page()], [[bookmark]])) as store:
        assert store.has_reached("50")


async def test_a_watch_that_breaks_goes_on_after_what_was_seen() -> None:
    script = Script([page()], [[event("ADDED", body("a", version="20")), UnreachableError("broken")]])
    async with watched(script) as store:
        assert warm_names(store) == {"a"}
    assert script.asked == ["list", "watch 10", "watch 20"]


GONE_EVENT = event("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})


@pytest.mark.parametrize("end", [GONE_EVENT, RefusedError(410, "Expired"), RefusedError(403), ValueError("a bug")])
async def test_a_watch_that_can_not_go_on_starts_with_a_new_list(end: Any) -> None:
    script = Script([page(body("a")), UnreachableError("still down"), page(body("b"), version="30")], [[end]])
    async with watched(script) as store:
        assert warm_names(store) == {"b"}
    assert script.asked == ["list", "watch 10", "list", "list", "watch 30"]


async def test_a_sandbox_that_is_not_understood_is_left_out_and_nothing_else() -> None:
    strange: Callable[[str], Json] = lambda name: body(name) | {"spec": {"templateRef": 7}}  # noqa: E731
    script = Script(
        [page(strange("x"), body("a"))],
        [[event("MODIFIED", strange("a")), event("ADDED", strange("y")), event("ADDED", body("b"))]],
    )
    async with watched(script) as store:
        assert warm_names(store) == {"b"}
        store.take(body("a", version="9"))
        assert warm_names(store) == {"a", "b"}, "and is there again once it is understood"


async def test_a_listed_sandbox_that_is_not_understood_is_there_again_once_it_is() -> None:
    strange = body("a", version="5") | {"spec": {"templateRef": 7}}
    again = event("MODIFIED", body("a", version="6"))
    async with watched(Script([page(body("a")), page(strange)], [[GONE_EVENT], [again]])) as store:
        assert warm_names(store) == {"a"}


async def test_pauses_grow_while_nothing_comes_and_are_over_with_the_first_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox_cache, "BACK_OFF", (0.0, 100.0, 200.0))
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    news = event("ADDED", body("a"))
    async with watched(Script([page()], [[], [], [], [news, UnreachableError("broken")], []])):
        pass
    assert [round(pause / 100) for pause in pauses] == [0, 1, 2, 0, 1]


async def test_a_first_list_that_fails_is_told() -> None:
    with pytest.raises(RefusedError):
        await a_watch(Script([RefusedError(403)], []), SandboxStore()).start()
