"""Claims within the limits that the caller's account has."""

from typing import Final

from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord
from sandpod_gateway.usage.amounts import account_of
from sandpod_gateway.usage.meter import Meter

_ENDED: Final = frozenset({"Failed", "Expired"})


async def claim(backend: Backend, meter: Meter, request: ClaimRequest) -> SandboxRecord:
    """Claim a sandbox, and count its time from now on; one of the session that is there already needs no room.

    Raises quota_exceeded, or the backend's refusal.
    """
    account = account_of(current_caller())
    if not meter.limits_sandboxes(account) or await _is_there(backend, request):
        record = await backend.claim(request)
    else:
        known = [await backend.get(name) for name in meter.sandboxes(account[:1])]
        with meter.claiming(account, {each.name for each in known if each is not None and each.status not in _ENDED}):
            record = await backend.claim(request)
    if record.fresh:
        meter.claimed(account, record.name, record.template, record.created.timestamp())
    return record


async def _is_there(backend: Backend, request: ClaimRequest) -> bool:
    held = await backend.list(request.owner) if request.session else []
    return any(each.session == request.session and each.status not in _ENDED for each in held)
