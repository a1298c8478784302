"""Which replica is active: the one that holds the Lease. The others wait and do nothing.

Like Kubernetes' own components it trusts no other machine's clock: a holder counts as gone when its Lease has not
changed for the whole duration on our clock. An active replica that can't renew in time ends.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from sandpod_api import names
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import ClusterError, ConflictError, NotFoundError, OverloadedError, UnreachableError
from sandpod_kube.owner import owned_by
from sandpod_kube.resources import LEASES
from sandpod_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)
_TRIES: Final = 3  # of a renewal, within its deadline
_MICRO_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class LeadershipLostError(Exception):
    """The Lease is no longer ours, or could not be renewed in time."""


def build_lease(settings: OperatorSettings, holder: str, now: datetime, old: dict[str, Any] | None) -> dict[str, Any]:
    """Return the Lease as its next holder writes it over the old one, if there is one; an empty one gives it up."""
    spec = (old or {}).get("spec") or {}
    same = spec.get("holderIdentity") == holder
    time_now = now.strftime(_MICRO_TIME)
    made = {
        "holderIdentity": holder,
        "leaseDurationSeconds": settings.lease_duration,
        "acquireTime": spec.get("acquireTime", time_now) if same else time_now,
        "renewTime": time_now,
        "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if same or not holder else 1),
    }
    return _lease(names.LEASE_LEADER, settings.namespace, made) | ({} if old is None else {"metadata": old["metadata"]})


def build_heartbeat(namespace: str, holder: str, now: datetime) -> dict[str, Any]:
    """Return the Lease whose watch event has to come back."""
    spec = {"holderIdentity": holder, "renewTime": now.strftime(_MICRO_TIME)}
    return _lease(names.LEASE_HEARTBEAT, namespace, spec)


def _lease(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        **LEASES.header,
        "metadata": {"name": name, "namespace": namespace, "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY}},
        "spec": spec,
    }


class Elector:
    """One replica's part in the election."""

    def __init__(
        self,
        cluster: KubeClient,
        settings: OperatorSettings,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._settings = cluster, settings
        self._clock, self._monotonic = clock, monotonic
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed = 0.0

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        while True:
            try:
                if await self.try_take():
                    return
            except ClusterError as error:
                _log.warning("the Lease can't be read or written: %s", error)
            await asyncio.sleep(self._settings.lease_retry)

    async def try_take(self) -> bool:
        """Take or renew the Lease if it is free, and return whether this replica holds it now.

        Raises ClusterError: the API server did not answer, or refused for a reason other than a lost race.
        """
        start = self._monotonic()
        lease = await self._read()
        if lease is not None and not self._free(lease):
            return False
        wanted = build_lease(self._settings, self._settings.identity, self._clock(), lease)
        if "ownerReferences" not in wanted["metadata"]:
            settings = self._settings
            wanted["metadata"] |= await owned_by(self._cluster, settings.namespace, settings.lease_owner)
        try:
            if lease is None:
                await self._cluster.create(LEASES, wanted)
            else:
                await self._cluster.replace(LEASES, wanted)
        except ConflictError:
            return False
        # Counted from before the call: the server may have written at once and answered late.
        self._renewed = start
        return True

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._cluster.get(LEASES, self._settings.namespace, names.LEASE_LEADER)
        except NotFoundError:
            return None

    def _free(self, lease: dict[str, Any]) -> bool:
        version = str(lease["metadata"].get("resourceVersion", ""))
        now = self._monotonic()
        if version != self._seen[0]:
            self._seen = (version, now)
        if _holder(lease) in {"", self._settings.identity}:
            return True
        duration = lease["spec"].get("leaseDurationSeconds") or self._settings.lease_duration
        return now - self._seen[1] >= float(duration)

    async def keep(self) -> None:
        """Renew the Lease until cancelled; raises what `renew` does."""
        while True:
            await asyncio.sleep(self._settings.lease_retry)
            await self.renew()

    async def renew(self) -> None:
        """Renew the Lease once; a cluster that does not answer is tolerated until the deadline.

        Raises LeadershipLostError: another replica has it, or it could not be renewed in time.
        """
        deadline = self._settings.lease_renew_deadline
        left = deadline - (self._monotonic() - self._renewed)
        try:
            # A connection that died silently must leave time for another try, on another one.
            async with asyncio.timeout(max(0.0, min(left, deadline / _TRIES))):
                # Still ours, although a write of our own without an answer has changed it?
                held = await self.try_take() or _holder(await self._read()) == self._settings.identity
        except (UnreachableError, OverloadedError, TimeoutError) as error:
            if self._monotonic() - self._renewed >= deadline:
                text = f"the Lease could not be renewed for {deadline:g} s"
                raise LeadershipLostError(text) from error
            return
        except ClusterError as error:
            raise LeadershipLostError(f"the Lease can't be renewed: {error}") from error
        if not held:
            raise LeadershipLostError("another replica has taken the Lease")

    async def release(self) -> None:
        """Release the Lease, so that another replica need not wait for it to expire. Best effort."""
        try:
            lease = await self._read()
            if _holder(lease) == self._settings.identity:
                await self._cluster.replace(LEASES, build_lease(self._settings, "", self._clock(), lease))
        except ClusterError as error:
            _log.info("the Lease was not given up and will run out: %s", error)


def _holder(lease: dict[str, Any] | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
