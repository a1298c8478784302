"""How long a claim's sandbox lives here, and what no claim can have here. Pure."""

from sandpod_api.fields import MAX_LIFETIME
from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.refusals import invalid


def lifetime_of(request: ClaimRequest, settings: LocalSettings) -> tuple[int, int]:
    """Return the ttl and the idle timeout of a claim, seconds. Raises SandpodError: invalid_argument."""
    step = "Correct the argument and call again, or leave it out."
    ttl = settings.ttl if request.ttl is None else request.ttl
    idle_timeout = settings.idle_timeout if request.idle_timeout is None else request.idle_timeout
    if request.template not in {None, settings.template}:
        raise invalid(f"There is no template {request.template!r} here, only {settings.template!r}.", step)
    if request.network != NETWORK_NONE:
        raise invalid("Sandboxes on this server have no network; the only network profile is 'none'.", step)
    if any(each.reference is not None for each in request.secrets):
        raise invalid("This server has no Secrets to refer to.", "Give the secret's value instead.")
    if request.workspace is not None:
        raise invalid("Workspaces here have a fixed size and end with their sandbox: none is persistent.", step)
    if not (1 <= ttl <= MAX_LIFETIME and 1 <= idle_timeout <= MAX_LIFETIME):
        raise invalid(f"Lifetimes are from 1 to {MAX_LIFETIME} seconds.", step)
    return ttl, min(ttl, idle_timeout)
