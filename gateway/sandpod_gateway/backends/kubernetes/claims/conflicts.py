"""Keeps a named session at one sandbox, though several gateways may claim one for it at the same moment.

There is no lock: of two claims, at least the later one sees the other here, since each looks after it has written. The
look is at the watch's cache, once that has come as far as the own write: all that was written before is in it then. Who
sees a rival gives up its own, unless it won by the order that both see: then it waits for the rival to give up. A rival
that does not had looked before our claim was written, and keeps its own; then we give up all the same. So two are never
kept.
"""

import asyncio
from typing import Final

from sandpod_api import names
from sandpod_api.types import Claim, Sandbox
from sandpod_gateway.backends.kubernetes.cache.records import is_live, parse
from sandpod_gateway.backends.kubernetes.cache.sandbox_cache import SandboxStore
from sandpod_gateway.backends.kubernetes.claims import patches as claims
from sandpod_gateway.backends.kubernetes.cluster import Cluster

WATCH_LAG: Final = 0.5
"""Seconds that the watch gets to report the own write; it takes milliseconds. After that the API server is asked."""
PAUSES: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds to wait between looks for a rival to give up."""


async def find_rival(cluster: Cluster, store: SandboxStore, mine: Sandbox, claim: Claim) -> str | None:
    """Return the name of the sandbox to use instead of `mine`; None where `mine` is the session's one.

    Raises:
        ClusterError: It can't be known.
    """
    if not claim.session:
        return None
    for pause in (*PAUSES, None):
        known = await _claimed(cluster, store, mine, claim)
        rivals = [
            s for s in known if s.metadata.uid != mine.metadata.uid and is_live(s) and claims.same_session(s, claim)
        ]
        if not rivals:
            return None
        if pause is None or claims.first_claimed([mine, *rivals]) is not mine:
            return claims.first_claimed(rivals).metadata.name
        await asyncio.sleep(pause)
    return None


async def _claimed(cluster: Cluster, store: SandboxStore, mine: Sandbox, claim: Claim) -> list[Sandbox]:
    """Return sandboxes of the claim's owner, with all those that were claimed for its session before `mine` was."""
    written = mine.metadata.resource_version
    if await store.until(lambda: store.has_reached(written) or None, WATCH_LAG):
        return store.owned(claim.owner)
    page = await cluster.list_page(names.SANDBOXES, {"labelSelector": claims.session_selector(claim)})
    listed = [sandbox for body in page.get("items") or [] if (sandbox := parse(body)) is not None]
    for sandbox in listed:
        store.put(sandbox)
    return listed
