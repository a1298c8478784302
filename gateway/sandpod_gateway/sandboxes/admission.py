"""Claims within the limits that the caller's account has."""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord
from sandpod_gateway.usage.amounts import Account, account_of
from sandpod_gateway.usage.meter import Meter
from sandpod_telemetry import attributes, log_context, tracing

_ENDED: Final = frozenset({"Failed", "Expired"})

# By owner and session: claims of one session at a time, so that the second finds the sandbox of the first.
_turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()


async def claim(backend: Backend, meter: Meter, request: ClaimRequest) -> SandboxRecord:
    """Claim a sandbox, and count its time from now on; one of the session that is there already needs no room.

    Raises quota_exceeded, or the backend's refusal.
    """
    # What watches the sandbox from here on outlives the call: its log lines name no run of that.
    with log_context.bound(owner=request.owner), tracing.span("sandbox.claim"):
        account = account_of(current_caller())
        if not request.session or not meter.limits.bound_sandboxes(account):
            record = await _claim(backend, meter, request, account)
        else:
            async with _turns.setdefault((request.owner, request.session), asyncio.Lock()):
                record = await _claim(backend, meter, request, account)
        tracing.note({attributes.SANDBOX: record.name, attributes.TEMPLATE: record.template})
        if not record.fresh:
            tracing.note({attributes.CLAIM_ORIGIN: "held"})
        return record


async def _claim(backend: Backend, meter: Meter, request: ClaimRequest, account: Account) -> SandboxRecord:
    if not meter.limits.bound_sandboxes(account) or await _is_there(backend, request):
        record = await backend.claim(request)
    else:
        # One that comes meanwhile, by a claim at the same time, is none of these.
        names = list(meter.sandboxes(account[:1]))
        ended = {name for name in names if _has_ended(await backend.get(name))}
        with meter.claiming(account, ended):
            record = await backend.claim(request)
    if record.fresh:
        meter.claimed(account, record.name, record.template, record.created.timestamp())
    return record


async def _is_there(backend: Backend, request: ClaimRequest) -> bool:
    # Asked without a session, too: what the tenant has is known once this is answered.
    held = await backend.list(request.owner)
    return any(request.session == each.session != "" and not _has_ended(each) for each in held)


def _has_ended(record: SandboxRecord | None) -> bool:
    return record is None or record.status in _ENDED
