"""Tenants: a backend for each, which look like one to all that is above.

An owner says which tenant a call is of, and a sandbox is known above by its name and its tenant's, since those of two
namespaces may have the same name. What a tenant has, such as a namespace, only its own backend knows.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import tenant_of, user_of
from sandpod_gateway.auth.key_source import KeySource
from sandpod_gateway.auth.links import SecretStore
from sandpod_gateway.auth.oidc.places import StatePlaces
from sandpod_gateway.backends.base import (
    Backend,
    ByteStream,
    ClaimRequest,
    PoolRecord,
    SandboxEvent,
    SandboxRecord,
    TemplateInfo,
)
from sandpod_gateway.backends.first_use import FirstUse
from sandpod_gateway.backends.starting import try_start
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.secrets.values import Secret, SecretSource
from sandpod_gateway.usage.stores import DocumentStore

RETRY_SECONDS: Final = 10.0  # between two tries to start a tenant's backend
SEPARATOR: Final = "."  # between a tenant and a sandbox, whose names are DNS labels


class _Part(NamedTuple):
    """A tenant's backend."""

    tenant: str  # empty for the default one
    backend: Backend

    def outer(self, record: SandboxRecord) -> SandboxRecord:
        """Return a record as it is known above."""
        return replace(record, name=_outer(self.tenant, record.name))


def qualified(owner: str, name: str) -> str:
    """Return a name in the namespace of an owner's tenant as it is known above: one of a tenant alone."""
    return _outer(tenant_of(owner), name)


def _outer(tenant: str, name: str) -> str:
    return f"{tenant}{SEPARATOR}{name}" if tenant else name


class _Secrets:
    """The secrets of all tenants; implements `secrets.values.SecretSource`."""

    def __init__(self, at: Callable[[str], tuple[_Part, str]]) -> None:
        self._at = at  # the part that a name is in, and the name there

    async def of_session(self, sandbox: str) -> tuple[Secret, ...]:
        """Return what was given with a sandbox."""
        part, name = self._at(sandbox)
        return await part.backend.secret_source().of_session(name)

    async def of_claim(self, sandbox: str) -> tuple[Secret, ...]:
        """Return what a sandbox's claim refers to."""
        part, name = self._at(sandbox)
        return await part.backend.secret_source().of_claim(name)

    async def of_template(self, template: str) -> tuple[Secret, ...] | None:
        """Return a template's secrets."""
        part, name = self._at(template)
        return await part.backend.secret_source().of_template(name)


class TenantBackend:
    """Sandboxes of several tenants; implements `base.Backend`.

    The default tenant's backend must start; it also has the keys and what links are signed with. Another one that does
    not start is tried again until it does: its callers get backend_unavailable meanwhile, and no other's notice.
    """

    def __init__(
        self,
        default: Backend,
        tenants: Mapping[str, Backend] = {},
        *,
        required: bool = False,
        first_use: FirstUse | None = None,
    ) -> None:
        """Use these backends, by tenant.

        With `required`, callers without a tenant are refused; with `first_use`, tenants that are not among these are
        made.
        """
        self.kind = default.kind
        self._default = _Part("", default)
        self._parts = {tenant: _Part(tenant, backend) for tenant, backend in tenants.items()}
        self._required = required
        self._first_use = first_use
        self._missing = set(self._parts)  # those that have not started
        self._at_end = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Start all; see `base.Backend.start`."""
        await self._default.backend.start()
        self._at_end.push_async_callback(self._default.backend.close)
        starting = [*map(self._try, self._parts.values())]
        if self._first_use is not None:
            self._at_end.push_async_callback(self._first_use.close)
            starting.append(self._first_use.start())
        await asyncio.gather(*starting)
        for tenant in self._missing:
            task = asyncio.create_task(self._retry(self._parts[tenant]), name=f"start of tenant {tenant}")
            self._at_end.push_async_callback(asyncio.wait, {task})
            self._at_end.callback(task.cancel)

    async def close(self) -> None:
        """Close all."""
        await self._at_end.aclose()

    async def _retry(self, part: _Part) -> None:
        while part.tenant in self._missing:
            await asyncio.sleep(RETRY_SECONDS)
            await self._try(part)

    async def _try(self, part: _Part) -> None:
        if await try_start(part.tenant, part.backend):
            self._at_end.push_async_callback(part.backend.close)
            self._missing.discard(part.tenant)

    async def check(self) -> None:
        """Return when the default tenant's sandboxes could be claimed; see `base.Backend.check`."""
        await self._default.backend.check()

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        """Give the caller a sandbox of its tenant; see `base.Backend.claim`."""
        part = await self._of(request.owner)
        return part.outer(await part.backend.claim(request))

    async def get(self, name: str) -> SandboxRecord | None:
        """Return the claimed sandbox of that name, whosever it is."""
        part, inner = self._at(name)
        record = await part.backend.get(inner)
        # Whoever may write to a tenant's namespace could enter another tenant's user as owner there.
        return None if record is None or tenant_of(record.owner) != part.tenant else part.outer(record)

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's sandboxes, oldest first."""
        part = await self._of(owner)
        return [part.outer(record) for record in await part.backend.list(owner)]

    async def every(self) -> tuple[SandboxRecord, ...]:
        """Return the sandboxes of all tenants' owners, oldest first: those of tenants that are available."""
        found: list[SandboxRecord] = []
        for part in self._all():
            records = await part.backend.every()
            found += [part.outer(record) for record in records if tenant_of(record.owner) == part.tenant]
        return tuple(sorted(found, key=lambda record: (record.created, record.name)))

    async def events(self, name: str) -> tuple[SandboxEvent, ...]:
        """Return what happened to a sandbox; see `base.Backend.events`."""
        part, inner = self._at(name)
        return await part.backend.events(inner)

    async def templates(self, owner: str) -> tuple[TemplateInfo, ...]:
        """Return the templates of the owner's tenant; see `base.Backend.templates`."""
        return await (await self._of(owner)).backend.templates(owner)

    async def pools(self, owner: str) -> tuple[PoolRecord, ...]:
        """Return the pools of the owner's tenant."""
        return await (await self._of(owner)).backend.pools(owner)

    async def scale_pool(self, owner: str, name: str, replicas: int) -> None:
        """Scale a pool of the owner's tenant; see `base.Backend.scale_pool`."""
        await (await self._of(owner)).backend.scale_pool(owner, name, replicas)

    def link_store(self) -> SecretStore | None:
        """Return where links' secrets are; see `base.Backend.link_store`."""
        return self._default.backend.link_store()

    def key_source(self) -> KeySource | None:
        """Return where the keys of all tenants' callers are; see `base.Backend.key_source`."""
        return self._default.backend.key_source()

    def sign_in_places(self) -> StatePlaces | None:
        """Return where sign-ins in progress are kept; see `base.Backend.sign_in_places`."""
        return self._default.backend.sign_in_places()

    def sign_in_key_store(self) -> SecretStore | None:
        """Return where the key of sign-ins is kept; see `base.Backend.sign_in_key_store`."""
        return self._default.backend.sign_in_key_store()

    def usage_store(self) -> DocumentStore | None:
        """Return where all tenants' usage is kept; see `base.Backend.usage_store`."""
        return self._default.backend.usage_store()

    def secret_source(self) -> SecretSource:
        """Return what finds the secrets of all tenants' sandboxes and templates, by their names as above."""
        return _Secrets(self._at)

    def warm(self) -> dict[tuple[str, str], int]:
        """Return how many sandboxes wait for a claim, by tenant and template."""
        return {(part.tenant, key[1]): n for part in self._all() for key, n in part.backend.warm().items()}

    async def wake(self, name: str) -> SandboxRecord | None:
        """Return the sandbox once it is Ready; see `base.Backend.wake`."""
        part, inner = self._at(name)
        record = await part.backend.wake(inner)
        return None if record is None else part.outer(record)

    async def suspend(self, name: str) -> None:
        """Stop a sandbox and keep its files; see `base.Backend.suspend`."""
        part, inner = self._at(name)
        await part.backend.suspend(inner)

    async def set_lifetime(self, name: str, *, ttl: int, idle_timeout: int) -> SandboxRecord:
        """Change how long the sandbox lives; see `base.Backend.set_lifetime`."""
        part, inner = self._at(name)
        return part.outer(await part.backend.set_lifetime(inner, ttl=ttl, idle_timeout=idle_timeout))

    async def delete(self, name: str) -> None:
        """End the sandbox."""
        part, inner = self._at(name)
        await part.backend.delete(inner)

    async def touch(self, name: str) -> None:
        """Note that the sandbox is in use now."""
        part, inner = self._at(name)
        await part.backend.touch(inner)

    async def keep_busy(self, name: str, seconds: float) -> None:
        """Note that a background run may go on for so many seconds; see `base.Backend.keep_busy`."""
        part, inner = self._at(name)
        await part.backend.keep_busy(inner, seconds)

    async def open_stream(self, name: str) -> ByteStream:
        """Open a stream to the sandbox's runner; see `base.Backend.open_stream`."""
        part, inner = self._at(name)
        return await part.backend.open_stream(inner)

    def _all(self) -> tuple[_Part, ...]:
        made = () if self._first_use is None else itertools.starmap(_Part, self._first_use.backends())
        return (self._default, *self._parts.values(), *made)

    async def _of(self, owner: str) -> _Part:
        """Return the part of an owner's tenant. Raises forbidden or backend_unavailable."""
        tenant = tenant_of(owner)
        part = self._parts.get(tenant) if tenant else self._default
        if part is None and self._first_use is not None:
            # Nothing is made for a tenant's templates that the gateway itself asks for, which is no user.
            first = self._first_use
            backend = await first.of_caller(tenant) if user_of(owner) else first.find(tenant)
            if backend is not None:
                return _Part(tenant, backend)
        if part is None or (self._required and not tenant):
            message = f"This server has no tenant {tenant}." if tenant else "Your key or token is of no tenant."
            step = "Ask the administrator for a key of a tenant that this server has."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        self._check(part)
        return part

    def _check(self, part: _Part) -> None:
        if part.tenant in self._missing:
            message, step = "Your tenant's sandboxes are not available.", "Try again later, or tell the administrator."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)

    def _at(self, name: str) -> tuple[_Part, str]:
        """Return the part that a sandbox is in, and its name there; no sandbox of the default one has a separator.

        Raises backend_unavailable, while that part has not started. It does not wait for that.
        """
        tenant, separator, inner = name.partition(SEPARATOR)
        part = self._parts.get(tenant)
        if part is None and separator and self._first_use is not None:
            made = self._first_use.find(tenant)
            part = None if made is None else _Part(tenant, made)
        if part is None:
            return self._default, name
        self._check(part)
        return part, inner
