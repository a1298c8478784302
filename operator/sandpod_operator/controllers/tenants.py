"""Makes the namespaces of tenants on first use, each with all that the chart gives it, and keeps it so.

Only the active replica does. It deletes no namespace: what is in one is its tenant's.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from sandpod_api.conditions import Reason
from sandpod_api.types import SandboxTenant, SandboxTenantStatus
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import ClusterError, ConflictError, NotFoundError, OverloadedError, RefusedError
from sandpod_kube.follow import follow
from sandpod_kube.resources import NAMESPACES, TENANT_CONTENT, TENANTS, Key, key_of
from sandpod_kube.workqueue import WorkQueue
from sandpod_operator.controllers.namespaces import find_usable, parse_tenants
from sandpod_operator.manifests.tenant import Content, identity
from sandpod_operator.planning.tenant import Refused, is_provisioned, plan_tenant, provisioned, refused, taken
from sandpod_operator.settings import OperatorSettings
from sandpod_operator.status.failures import clean

_log = logging.getLogger(__name__)

WORKERS: Final = 4
_AGAIN: Final = 2.0  # seconds until a watch that broke is opened anew


class TenantController:
    """Brings the namespace of each SandboxTenant to what the chart's file says."""

    def __init__(
        self,
        *,
        cluster: KubeClient,
        settings: OperatorSettings,
        content: Content,
        clock: Callable[[], datetime],
        usable: Iterable[str] = (),
    ) -> None:
        """Know no tenant yet; `settings` are those that the operator was started with, `usable` are namespaces."""
        self._usable = set(usable)
        self._cluster, self._settings, self._content, self._clock = cluster, settings, content, clock
        self.queue = WorkQueue(clock=clock, backoff_min=settings.backoff_min, backoff_max=settings.backoff_max)
        self._tenants: dict[str, SandboxTenant] = {}
        self._trusted: set[str] = set()  # uids of those whose status has been believed once
        self._failed: set[str] = set()  # uids of those whose last try failed
        self.made = asyncio.Event()
        """Set when a namespace is there that was not before, or not usable."""

    async def run(self) -> None:
        """Follow the tenants and work on them until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self.queue.run_dates())
            for _ in range(WORKERS):
                group.create_task(self.queue.run_worker(self.reconcile))

    async def _follow(self) -> None:
        silence = self._settings.watch_silence
        while True:
            try:
                async with aclosing(
                    follow(self._cluster, TENANTS, self._settings.namespace, {}, silence=silence)
                ) as found:
                    async for manifests in found:
                        self.saw(manifests)
            except ClusterError as error:
                _log.warning("tenants can't be watched: %s", error)
            await asyncio.sleep(_AGAIN)

    def saw(self, manifests: list[dict[str, Any]]) -> None:
        """Take in all tenants that there are, and have those worked on that are new."""
        before = self._tenants
        self._tenants = {each.metadata.name: each for each in parse_tenants(manifests)}
        gone = before.keys() - self._tenants.keys()
        for name in gone:
            self.queue.forget(self._key(name))
        for name, tenant in self._tenants.items():
            known = before.get(name)
            # The operator's own writes to a status are no news. Where one has gone there may be room for another.
            is_new = known is None or known.metadata.uid != tenant.metadata.uid
            if is_new or (gone and tenant.status.namespace is None):
                self.queue.add(self._key(name))

    def lost(self, namespace: str) -> None:
        """Have the tenant worked on whose namespace is being deleted: it comes back as soon as the name is free."""
        self._usable.discard(namespace)
        for name, tenant in self._tenants.items():
            if tenant.status.namespace == namespace:
                self.queue.add(self._key(name))

    def _key(self, name: str) -> Key:
        return Key(TENANTS.kind, self._settings.namespace, name)

    async def reconcile(self, key: Key) -> datetime | None:
        """Work on one tenant, and return when to look at it again. Raises ClusterError: to be tried again soon."""
        tenant = self._tenants.get(key.name)
        if tenant is None:
            return None
        uid, again = tenant.metadata.uid, self._clock() + timedelta(seconds=self._settings.resync_interval)
        place = plan_tenant(tenant, self._tenants.values(), self._settings)
        trusted, self._trusted = uid in self._trusted, self._trusted | {uid}
        if not trusted and place in self._usable and is_provisioned(tenant, self._content.revision):
            return again  # by the process before this one, or a moment ago
        try:
            if isinstance(place, str) and not await self._provision(key.name, place):
                place = taken(place)
        except RefusedError as error:
            # A right that was given a moment ago may not be in force everywhere: the second time it is a failure.
            if uid in self._failed and not isinstance(error, OverloadedError):
                await self._refuse(tenant, Refused(Reason.PROVISIONING_FAILED, clean(error.message)))
            self._failed.add(uid)
            raise
        self._failed.discard(uid)
        if isinstance(place, Refused):
            await self._refuse(tenant, place)
        else:
            await self._write(tenant, provisioned(tenant, place, self._content.revision, self._clock()))
            if place not in self._usable:
                _log.info("tenant %s has the namespace %s", key.name, place)
                self._usable.add(place)
                self.made.set()
        return again

    async def _provision(self, tenant: str, namespace: str) -> bool:
        """Bring a namespace to what it must be, and return whether it is the tenant's."""
        (_, space), *objects = self._content.build(tenant, namespace, self._settings.namespace)
        if not await self._own(space, tenant):
            return False
        for resource, manifest in objects:
            await self._cluster.apply(resource, manifest)
        wanted = {key_of(resource, manifest) for resource, manifest in objects}
        for resource in TENANT_CONTENT:
            for found in [each async for each in self._cluster.pages(resource, namespace)]:
                if key_of(resource, found) not in wanted:
                    metadata = found["metadata"]
                    with contextlib.suppress(NotFoundError, ConflictError):
                        await self._cluster.delete(resource, namespace, metadata["name"], {"uid": metadata["uid"]})
        if trouble := (await find_usable(self._cluster, (namespace,))).trouble:
            raise RefusedError(HTTPStatus.FORBIDDEN, message=trouble)
        return True

    async def _own(self, manifest: dict[str, Any], tenant: str) -> bool:
        """Make or change a namespace, and return whether it is the tenant's; another's stays as it is."""
        name = manifest["metadata"]["name"]
        try:
            found = await self._cluster.get(NAMESPACES, "", name)
        except NotFoundError:
            with contextlib.suppress(ConflictError):  # somebody else was quicker
                await self._cluster.create(NAMESPACES, manifest)
                return True
            found = await self._cluster.get(NAMESPACES, "", name)
        labels = found["metadata"].get("labels") or {}
        if not identity(tenant, self._settings.namespace).items() <= labels.items():
            return False
        await self._cluster.apply(NAMESPACES, manifest)
        return True

    async def _refuse(self, tenant: SandboxTenant, why: Refused) -> None:
        _log.warning("tenant %s: %s: %s", tenant.metadata.name, why.reason, why.message)
        await self._write(tenant, refused(tenant, why, self._clock()))

    async def _write(self, tenant: SandboxTenant, status: SandboxTenantStatus) -> None:
        if status == tenant.status:
            return
        change = {"namespace": None, "revision": None, **status.to_wire()}
        name, namespace = tenant.metadata.name, self._settings.namespace
        with contextlib.suppress(NotFoundError):  # it was deleted meanwhile
            answer = await self._cluster.patch_status(TENANTS, namespace, name, change)
            self._tenants[name] = SandboxTenant.model_validate(answer)
