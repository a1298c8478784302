"""Tells where a program ran, for the hint in its result. Called by `runs.py` and `background.py`."""

from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runs.hints import Place, is_about_network
from sandpod_gateway.sandboxes.service import Sandboxes


async def place_of(sandboxes: Sandboxes, record: SandboxRecord, stderr: str, *, fresh: bool = False) -> Place:
    """Return where a run was; its template's network profiles are looked up only where they matter.

    Args:
        sandboxes: The sandboxes.
        record: That of the run.
        stderr: What the program wrote there.
        fresh: Whether the sandbox is thrown away after the run.
    """
    return Place(
        sandbox=None if fresh else record.name,
        template=record.template,
        network=record.network,
        networks=await _networks(sandboxes, record.template) if is_about_network(stderr) else None,
    )


async def _networks(sandboxes: Sandboxes, template: str) -> tuple[str, ...] | None:
    try:
        templates = await sandboxes.templates()
    except SandpodError:
        return None
    return next((each.networks for each in templates if each.name == template), None)
