"""Claims sandboxes: one patch of a warm one, or a new one that is waited for.

A claim runs in a task of its own, so that a caller's cancel reaches it once and at a place where it can still clean up:
whatever it made and can't hand over is deleted.

A named session has one sandbox, though several gateways may claim one for it at the same moment and share no lock. Each
claim looks for others of its session after it is written, so that of two claims at least the later one sees the other.
It looks at the watch's cache, once that has its own write: all that was written before is in it then. A claim that sees
another gives up its sandbox, unless it is first by the order that both see: then it waits for the other to give up. One
that does not had looked before our claim was written, and keeps its sandbox; then we give up ours. So two are never
kept.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakValueDictionary

from cachetools import LRUCache
from pydantic import ValidationError

from sandpod_api import names
from sandpod_api.types import Claim, Sandbox, SandboxTemplate
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.kubernetes.cache.records import status_of
from sandpod_gateway.backends.kubernetes.claims import patches as claims
from sandpod_gateway.backends.kubernetes.claims.patches import Wanted
from sandpod_gateway.backends.kubernetes.claims.readiness import Waker
from sandpod_gateway.backends.kubernetes.cluster import translated
from sandpod_gateway.backends.kubernetes.sandbox_secrets import build_secret
from sandpod_gateway.backends.kubernetes.streams.warm_streams import WarmStreams
from sandpod_gateway.backends.refusals import pool_exhausted
from sandpod_kube.errors import ClusterError, NotFoundError, RefusedError, UnreachableError
from sandpod_kube.resources import SECRETS
from sandpod_telemetry import attributes, tracing

logger = logging.getLogger(__name__)

LOST_RACE_WAIT: Final = 0.25
"""Seconds to wait, in all, for the watch to report other warm sandboxes when all that are known were just taken."""
WATCH_LAG: Final = 0.5
"""Seconds that the watch gets to report the own write; it takes milliseconds. After that the API server is asked."""
PAUSES: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds to wait between looks for the other claim of a session to give up."""
PASSED_VERSIONS: Final = 4096
"""Versions that are remembered to be no more: far more than are lost while a watch is behind."""


@dataclass(eq=False)
class Claimer(Waker):
    """All claims of one gateway, in addition to what it waits for and resumes."""

    streams: WarmStreams
    _reserved: set[str] = field(default_factory=set, init=False)
    _passed: LRUCache[tuple[str, str], None] = field(default_factory=lambda: LRUCache(PASSED_VERSIONS), init=False)
    _sessions: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )

    async def claim(self, request: ClaimRequest) -> tuple[Sandbox, bool]:
        """Return a Ready sandbox that the caller holds, and whether this call claimed it. A cancel leaves nothing.

        Raises:
            SandpodError: As `base.Backend.claim`.
        """
        checked = claims.check_request(request, self.settings, datetime.now(UTC))
        wanted = replace(checked, span=tracing.traceparent())
        task = self.background.start(self._claim(wanted))
        with translated("a sandbox was claimed"):
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                # The task may have ended just now, with a sandbox that nobody is going to fetch.
                if not task.cancel() and not task.cancelled() and task.exception() is None:
                    unfetched, fresh = task.result()
                    if fresh:
                        self.background.start(self.release(unfetched.metadata.name))
                raise

    async def release(self, name: str) -> None:
        """Delete a sandbox that this claim made or took, whatever happens."""
        try:
            with suppress(NotFoundError):
                await self.cluster.delete(names.SANDBOXES, name)
        except ClusterError as error:
            logger.warning("sandbox %s can't be deleted and is left to its idle timeout: %s", name, error)
        self.store.remove(name)

    async def _claim(self, wanted: Wanted) -> tuple[Sandbox, bool]:
        """Return the sandbox, and whether it is fresh: claimed by this very call."""
        claim = wanted.claim
        if not claim.session:
            return await self._take(wanted)
        lock = self._sessions.setdefault((claim.owner, claim.session), asyncio.Lock())
        async with lock:
            if held := claims.of_session(self.store.owned(claim.owner), claim):
                return await self.wake(claims.first_claimed(held).metadata.name), False
            return await self._take(wanted)

    async def _take(self, wanted: Wanted) -> tuple[Sandbox, bool]:
        with self._admitted(wanted.claim.owner):
            # A warm sandbox has its template's workspace, and can't change it.
            warm = await self._take_warm(wanted) if wanted.workspace is None else None
            tracing.note({attributes.CLAIM_ORIGIN: "cold" if warm is None else "warm"})
            mine = warm or await self._make(wanted)
        # Not beside the claim's own write: should that lose its race, the values would stay beneath another's sandbox,
        # since gateways may delete no Secret. All else that a claim waits for takes its time beside this.
        keeping = self.background.start(self._keep_secrets(mine, wanted.secrets)) if wanted.secrets else None
        try:
            other = await self._other_claim(mine, wanted.claim)
            if other is None:
                return await self._ready(mine, keeping), True
        except BaseException:
            await asyncio.shield(self.background.start(self._give_up(mine, keeping)))
            raise
        self.background.start(self._give_up(mine, keeping))
        return await self.wait(other), False

    async def _keep_secrets(self, sandbox: Sandbox, content: bytes) -> None:
        await self.cluster.create(SECRETS.plural, build_secret(sandbox, content))

    async def _ready(self, mine: Sandbox, keeping: asyncio.Task[None] | None) -> Sandbox:
        """Return the claimed sandbox once it is Ready and its secrets are there; fails as soon as either does."""
        # The answer to our own write is newer than anything that the watch has reported.
        waiting = None if status_of(mine) == "Ready" else asyncio.ensure_future(self.wait(mine.metadata.name))
        try:
            await asyncio.gather(*(asyncio.shield(each) for each in (waiting, keeping) if each is not None))
        finally:
            if waiting is not None:
                waiting.cancel()
        return mine if waiting is None else waiting.result()

    async def _give_up(self, mine: Sandbox, keeping: asyncio.Task[None] | None) -> None:
        """Delete a sandbox whose claim has failed, after its Secret was written, which goes with it."""
        if keeping is not None:
            await asyncio.wait({keeping})
        await self.release(mine.metadata.name)

    async def _other_claim(self, mine: Sandbox, claim: Claim) -> str | None:
        """Return the name of the sandbox to use instead of `mine`; None where `mine` is the session's one."""
        for pause in (*PAUSES, None) if claim.session else ():
            held = claims.of_session(await self._claimed(mine, claim), claim)
            others = [s for s in held if s.metadata.uid != mine.metadata.uid]
            if not others:
                return None
            if pause is None or claims.first_claimed([mine, *others]) is not mine:
                return claims.first_claimed(others).metadata.name
            await asyncio.sleep(pause)
        return None

    async def _claimed(self, mine: Sandbox, claim: Claim) -> list[Sandbox]:
        """Return sandboxes of the claim's owner, with all those claimed for its session before `mine` was."""
        written = mine.metadata.resource_version
        if await self.store.until(lambda: self.store.has_reached(written) or None, WATCH_LAG):
            return self.store.owned(claim.owner)
        page = await self.cluster.list_page(names.SANDBOXES, {"labelSelector": claims.session_selector(claim)})
        return list(filter(None, map(self.store.take, page.get("items") or [])))

    async def _take_warm(self, wanted: Wanted) -> Sandbox | None:
        """Claim a warm sandbox; None where there is none left."""

        def candidate() -> Sandbox | None:
            warm = self.store.warm(wanted.template)
            free = [s for s in warm if s.metadata.name not in self._reserved and _version(s) not in self._passed]
            return claims.choose_candidate(free, wanted.network, self.streams.names())

        # With nothing lost there is nothing to wait for; else the watch is a moment behind other claims.
        end = time.monotonic() + LOST_RACE_WAIT
        found = candidate()
        while found is not None:
            if (claimed := await self._patch(found, wanted)) is not None:
                return claimed
            # This version is no more: no other claim is to try it while the watch is behind.
            self._passed[_version(found)] = None
            found = await self.store.until(candidate, max(end - time.monotonic(), 0))
        return None

    async def _patch(self, sandbox: Sandbox, wanted: Wanted) -> Sandbox | None:
        """Write the claim. Return the claimed sandbox, or None where someone else changed it first."""
        name = sandbox.metadata.name
        claim_id = secrets.token_hex(8)
        patch = claims.claim_patch(sandbox, wanted, claim_id)
        self._reserved.add(name)
        self.streams.promise(name)
        try:
            return await self._write(self.cluster.json_patch(names.SANDBOXES, name, patch), name, claim_id)
        except RefusedError as error:
            if _lost_race(error):
                return None
            raise
        finally:
            self._reserved.discard(name)

    async def _make(self, wanted: Wanted) -> Sandbox:
        workspace = claims.workspace_for(wanted, await self._template(wanted))
        if not wanted.may_make:
            raise pool_exhausted(wanted.template, wanted.network, chosen=self.settings.cold_start)
        name, claim_id = f"sbx-{secrets.token_hex(6)}", secrets.token_hex(8)
        body = claims.new_sandbox(name, wanted, claim_id, workspace)
        made = await self._write(self.cluster.create(names.SANDBOXES, body), name, claim_id)
        if made is None:
            raise UnreachableError("a Sandbox was created without an answer, and its name is another's")
        return made

    async def _write(self, work: Coroutine[Any, Any, dict[str, Any]], name: str, claim_id: str) -> Sandbox | None:
        """Return the sandbox that a write claims; None where it had no answer and the sandbox is not ours.

        A cancel does not leave it half known: it is finished, then undone.
        """
        write = self.background.start(self._written(work, name, claim_id))
        try:
            return await asyncio.shield(write)
        except asyncio.CancelledError:
            self.background.start(self._undo(write, name))
            raise

    async def _written(self, work: Coroutine[Any, Any, dict[str, Any]], name: str, claim_id: str) -> Sandbox | None:
        try:
            return self.store.take_answer(await work)
        except UnreachableError as error:
            # Should it be done later than it is looked for, the idle timeout ends it.
            try:
                sandbox = self.store.take_answer(await self.cluster.get(names.SANDBOXES, name))
            except RefusedError as refusal:
                raise error from refusal
            is_ours = sandbox.metadata.annotations.get(names.ANNOTATION_CLAIM_ID) == claim_id
            return sandbox if sandbox.spec.claim is not None and is_ours else None

    async def _undo(self, write: asyncio.Task[Sandbox | None], name: str) -> None:
        try:
            if await write is not None:
                await self.release(name)
        except RefusedError:
            return  # nothing was written
        except ClusterError as error:
            # It may be someone else's: it is deleted only where it is known to be ours.
            logger.info("a cancelled claim of sandbox %s is left to its idle timeout: %s", name, error)

    async def _template(self, wanted: Wanted) -> SandboxTemplate:
        """Return the template; refuse (invalid_argument) what can't start before anything is made."""
        try:
            template = SandboxTemplate.model_validate(await self.cluster.get(names.TEMPLATES, wanted.template))
        except ValidationError as error:
            raise ClusterError("the template is not one that this version understands") from error
        except NotFoundError as error:
            raise claims.unknown_template(wanted.template) from error
        profiles = {names.NETWORK_NONE, *(profile.name for profile in template.spec.network_profiles)}
        if wanted.network not in profiles:
            raise claims.unknown_profile(wanted.network, wanted.template)
        return template


def _version(sandbox: Sandbox) -> tuple[str, str]:
    return sandbox.metadata.uid, sandbox.metadata.resource_version


def _lost_race(error: RefusedError) -> bool:
    """Return whether a patch was refused because its object had changed.

    A failed `test` is a 422, as is an object that would not be valid; only the latter's message says so.
    """
    return error.status in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND} or (
        error.status == HTTPStatus.UNPROCESSABLE_ENTITY and "is invalid" not in str(error)
    )
