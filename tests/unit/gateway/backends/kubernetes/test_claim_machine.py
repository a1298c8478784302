"""Claims as a whole: two gateways and an operator on one API server in memory, in every order that Hypothesis finds.

Watches tell late and tell twice, sandboxes crash and expire, either side is restarted, claims race. Whatever happens,
no sandbox is held twice, none that was used waits in a pool again, none that is held is lost, and none is left over.
"""

import asyncio
import copy
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandpod_api.types import Sandbox
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import claimer
from sandpod_gateway.backends.kubernetes.claims.claimer import Claimer
from sandpod_gateway.backends.kubernetes.claims.readiness import Background
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError
from sandpod_kube.resources import POOLS, SANDBOXES, TEMPLATES, WATCHED, Key, Resource, key_of
from support.gateway.kube_objects import NoStreams, patched
from support.operator.world import SPACE, ApiServer, World, ended, metadata, template_object

if TYPE_CHECKING:
    from sandpod_gateway.backends.kubernetes.cluster import Cluster
    from sandpod_gateway.backends.kubernetes.streams.warm_streams import WarmStreams

Json = dict[str, Any]
Event = tuple[Literal["set", "gone"], Key, Json]

REPLICAS = 2
QUIET_ROUNDS = 12  # each of ten seconds: longer than the longest pause after a failure
OWNERS = ("alice", "bob")
SESSIONS = ("", "one")
GATEWAYS = (0, 1)
WHICH = st.integers(0, 9)  # of as many as there are: names are made at random, so nothing may be drawn from them


class WatchedServer(ApiServer):
    """An API server that keeps the order in which things happened, for watches that tell of it later."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.events: list[Event] = []
        self.version = 0

    def set(self, resource: Resource, manifest: Json) -> Json:
        made = super().set(resource, manifest)
        self.version = int(made["metadata"]["resourceVersion"])
        self.events.append(("set", key_of(resource, made), copy.deepcopy(made)))
        return made

    def remove(self, key: Key) -> None:
        self.events.append(("gone", key, self.objects[key]))
        super().remove(key)


class GatewayCluster:
    """The API server as a gateway calls it."""

    def __init__(self, api: WatchedServer) -> None:
        self._api = api

    async def get(self, plural: str, name: str) -> Json:
        resource = next(r for r in WATCHED if r.plural == plural)
        return copy.deepcopy(await self._api.get(resource, SPACE, name))

    async def list_page(self, plural: str, query: dict[str, str]) -> Json:
        assert plural == SANDBOXES.plural
        wanted = dict(pair.split("=") for pair in query["labelSelector"].split(","))
        found = self._api.list(SANDBOXES, SPACE)
        return {"items": [copy.deepcopy(o) for o in found if wanted.items() <= o["metadata"]["labels"].items()]}

    async def create(self, plural: str, made: Json) -> Json:
        assert plural == SANDBOXES.plural
        placed = {**made, "metadata": {**made["metadata"], "namespace": SPACE}}
        return copy.deepcopy(await self._api.create(SANDBOXES, placed))

    async def json_patch(self, plural: str, name: str, operations: list[Json]) -> Json:
        assert plural == SANDBOXES.plural
        await asyncio.sleep(0)
        current = await self._api.get(SANDBOXES, SPACE, name)
        return copy.deepcopy(self._api.set(SANDBOXES, patched(current, operations)))

    async def delete(self, plural: str, name: str) -> None:
        assert plural == SANDBOXES.plural
        await self._api.delete(SANDBOXES, SPACE, name, {})


class OneGateway:
    """A gateway's claims, and its watch, which lags."""

    def __init__(self, api: WatchedServer) -> None:
        self._api = api
        self.start()

    def start(self) -> None:
        """Start it anew: it lists what there is."""
        self.store, self.background = SandboxStore(), Background()
        self.claimer = Claimer(
            cast("Cluster", GatewayCluster(self._api)),
            self.store,
            KubernetesSettings(cold_start=False, default_template="python"),
            streams=cast("WarmStreams", NoStreams()),
            background=self.background,
            touch=self._touch,
        )
        there = [o for key, o in self._api.objects.items() if key.kind == "Sandbox"]
        for manifest in there:
            self.store.take(manifest)
        self.heard = len(self._api.events)
        self._reach()

    async def _touch(self, name: str) -> None:
        pass

    def hear(self, count: int) -> None:
        """Let the watch tell of the next events."""
        for kind, key, manifest in self._api.events[self.heard : self.heard + count]:
            if key.kind == "Sandbox" and kind == "set":
                self.store.take(manifest)
            elif key.kind == "Sandbox":
                self.store.remove(key.name, manifest["metadata"]["uid"])
        self.heard = min(self.heard + count, len(self._api.events))
        self._reach()

    def _reach(self) -> None:
        if self.heard == len(self._api.events):
            self.store.reached(str(self._api.version))

    async def keep_up(self) -> None:
        """Let the watch report what happens as it happens, until cancelled."""
        while True:
            self.hear(len(self._api.events))
            await asyncio.sleep(0)


class Claims(RuleBasedStateMachine):
    """What may happen, in any order."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.api = WatchedServer(self.world.clock)
        self.world.api = self.api
        self.world.start()
        self.told = 0
        self.refusals: set[str] = set()
        self.held: dict[str, tuple[str, str]] = {}  # by uid: owner and session
        self.claims: dict[str, Json] = {}  # every claim that was ever written, by uid
        self.patches: list[Any] = [
            patch.object(claimer, "LOST_RACE_WAIT", 0.001),
            patch.object(claimer, "PAUSES", (0.0, 0.0)),
            patch.object(claimer, "WATCH_LAG", 0.001),
            patch.object(claimer, "datetime", self),
        ]
        for each in self.patches:
            each.start()
        self.api.set(TEMPLATES, template_object())
        pool = {"templateRef": {"name": "python"}, "replicas": REPLICAS}
        self.api.set(POOLS, {"metadata": metadata("warm"), "spec": pool})
        self.gateways = [OneGateway(self.api) for _ in GATEWAYS]
        self.settle()

    def now(self, _: object) -> datetime:
        """The time that claims carry, in place of `datetime.now`."""
        return self.world.now

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def sandboxes(self) -> dict[str, Json]:
        return {o["metadata"]["uid"]: o for key, o in self.api.objects.items() if key.kind == "Sandbox"}

    def operator_hears(self, count: int) -> None:
        for kind, key, manifest in self.api.events[self.told : self.told + count]:
            if kind == "set":
                self.world.dispatcher.saw(next(r for r in WATCHED if r.kind == key.kind), manifest)
            else:
                self.world.dispatcher.lost(key, manifest["metadata"]["uid"])
        self.told = min(self.told + count, len(self.api.events))
        self.run(self.world.settle())

    def settle(self) -> None:
        """Let everybody hear everything, and every pod start, until nothing happens for two minutes."""
        quiet = 0
        while quiet < QUIET_ROUNDS:
            before = len(self.api.events)
            self.operator_hears(before - self.told)
            self.run(self.world.start_all())
            self.run(self.world.after(10))
            quiet = quiet + 1 if before == len(self.api.events) else 0
        for gateway in self.gateways:
            self.run(gateway.background.close())
            gateway.hear(len(self.api.events))

    async def _claim(self, gateway: int, owner: str, session: str) -> tuple[Sandbox, bool] | None:
        request = ClaimRequest(owner=owner, session=session)
        try:
            return await self.gateways[gateway].claimer.claim(request)
        except SandpodError as error:
            self.refusals.add(error.code)
            return None

    def note(self, claimed: tuple[Sandbox, bool] | None, owner: str, session: str) -> None:
        if claimed is None:
            return
        sandbox, fresh = claimed
        uid = sandbox.metadata.uid
        claim = sandbox.spec.claim
        assert claim is not None
        assert (claim.owner, claim.session) == (owner, session)
        if fresh:
            assert uid not in self.held, "one sandbox for two claims"
            self.held[uid] = (owner, session)
        there = self.sandboxes()
        usable = {uid for uid, o in there.items() if o.get("status", {}).get("phase") in {"Warm", "Ready"}}
        of_session = [uid for uid, who in self.held.items() if session and who == (owner, session) and uid in usable]
        assert len(of_session) <= 1, "one session has two sandboxes"

    @rule(gateway=st.sampled_from(GATEWAYS), owner=st.sampled_from(OWNERS), session=st.sampled_from(SESSIONS))
    def claim(self, gateway: int, owner: str, session: str) -> None:
        self.note(self.run(self._claim(gateway, owner, session)), owner, session)

    @rule(
        wishes=st.lists(
            st.tuples(st.sampled_from(GATEWAYS), st.sampled_from(OWNERS), st.sampled_from(SESSIONS)),
            min_size=2,
            max_size=5,
        ),
        watched=st.booleans(),
    )
    def claims_race(self, wishes: list[tuple[int, str, str]], *, watched: bool) -> None:
        """With watches that report in the meantime, or that do not."""

        async def together() -> list[tuple[Sandbox, bool] | None]:
            watches = [asyncio.create_task(gateway.keep_up()) for gateway in self.gateways if watched]
            try:
                return await asyncio.gather(*(self._claim(*wish) for wish in wishes))
            finally:
                for watch in watches:
                    watch.cancel()

        for (_, owner, session), claimed in zip(wishes, self.run(together()), strict=True):
            self.note(claimed, owner, session)

    @rule(owner=st.sampled_from(OWNERS), watched=st.booleans())
    def gateways_race_for_a_session(self, owner: str, *, watched: bool) -> None:
        self.claims_race([(gateway, owner, SESSIONS[1]) for gateway in GATEWAYS], watched=watched)

    @rule(which=WHICH, gateway=st.sampled_from(GATEWAYS))
    def release(self, which: int, gateway: int) -> None:
        if not self.held:
            return
        uid = list(self.held)[which % len(self.held)]
        del self.held[uid]
        body = self.sandboxes().get(uid)
        if body is not None:
            self.run(self.gateways[gateway].claimer.release(body["metadata"]["name"]))

    @rule(gateway=st.sampled_from(GATEWAYS), count=st.integers(1, 6), again=st.integers(0, 3))
    def gateway_is_told(self, gateway: int, count: int, again: int) -> None:
        """The watch goes on, some events of which it tells twice."""
        self.gateways[gateway].heard = max(0, self.gateways[gateway].heard - again)
        self.gateways[gateway].hear(count + again)

    @rule(count=st.integers(1, 8), again=st.integers(0, 3))
    def operator_is_told(self, count: int, again: int) -> None:
        self.told = max(0, self.told - again)
        self.operator_hears(count + again)

    @rule()
    def pods_start(self) -> None:
        self.run(self.world.start_all())

    @rule(which=WHICH)
    def pod_crashes(self, which: int) -> None:
        names = [key.name for key in self.api.objects if key.kind == "Pod"]
        if names:
            self.run(self.world.pod_becomes(names[which % len(names)], ended(137, reason="OOMKilled")))

    @rule(seconds=st.sampled_from([1, 60, 2000]))
    def time_passes(self, seconds: int) -> None:
        self.run(self.world.after(seconds))

    @rule(gateway=st.sampled_from(GATEWAYS))
    def gateway_restarts(self, gateway: int) -> None:
        self.run(self.gateways[gateway].background.close())
        self.gateways[gateway].start()

    @rule()
    def operator_restarts(self) -> None:
        self.world.start()
        self.told = len(self.api.events)
        self.run(self.world.dispatcher.resync())
        self.run(self.world.settle())

    @rule()
    def all_is_quiet(self) -> None:
        self.settle()
        there = self.sandboxes()
        free = [o for o in there.values() if "claim" not in o["spec"]]
        assert len(free) == REPLICAS, "the pool is full again, and no more than that"
        assert all(o["status"]["phase"] == "Warm" for o in free)
        live = {uid: o for uid, o in there.items() if o.get("status", {}).get("phase") == "Ready"}
        assert live.keys() <= self.held.keys(), "nobody holds it"
        named = [self.held[uid] for uid in live if self.held[uid][1]]
        assert len(named) == len(set(named)), "one session has two sandboxes"

    @invariant()
    def claims_are_refused_for_want_of_a_sandbox_alone(self) -> None:
        assert self.refusals <= {"pool_exhausted", "sandbox_lost"}

    @invariant()
    def claims_stay_as_they_were_written(self) -> None:
        for uid, o in self.sandboxes().items():
            claim = o["spec"].get("claim")
            assert self.claims.get(uid, claim) == claim, "a claim was changed or taken back"
            if claim is not None:
                self.claims[uid] = claim
                assert not o["metadata"].get("ownerReferences"), "it goes with its pool"

    @invariant()
    def what_is_held_is_there_until_it_ends(self) -> None:
        there = self.sandboxes()
        self.held = {uid: who for uid, who in self.held.items() if uid in there or not self._vanished(uid)}

    def _vanished(self, uid: str) -> bool:
        """Tell whether a held sandbox is gone, which it may be when its end was written first."""
        last = next(m for kind, _, m in reversed(self.api.events) if kind == "gone" and m["metadata"]["uid"] == uid)
        assert last["status"]["phase"] in {"Expired", "Failed"}, "a sandbox that was held is lost"
        return True

    def teardown(self) -> None:
        for each in self.patches:
            each.stop()
        for gateway in self.gateways:
            self.run(gateway.background.close())
        self.loop.close()


TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
