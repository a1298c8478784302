"""What `sandpod doctor` says of local sandboxes: whether this machine isolates them, and what they have."""

import asyncio

from sandpod_gateway.backends.local import host as local_host
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import StartError


def local() -> list[tuple[str, bool | None, str]]:
    """Return what was looked at, whether it is in order (None: it is not there), and what was found."""
    settings = LocalSettings(warm=0)
    try:
        asyncio.run(_started(LocalBackend(settings)))
        host = local_host.inspect(settings)
    except StartError as error:
        cause = f" ({error.cause.rstrip('.')})" if error.cause else ""
        return [("isolation", False, f"{error.message.rstrip('.')}{cause}. {error.next_step}")]
    environment = host.environment
    libraries = f"{len(environment.libraries())} of Python" if environment is not None else "None: run `sandpod setup`."
    return [
        ("isolation", True, "Local sandboxes have namespaces and a filter of system calls; they share this kernel."),
        ("Python", True, f"{host.version}, {host.python}"),
        (
            "Node.js",
            host.node is not None or None,
            host.node or "None of version 20 or later: sandpod[node] brings it.",
        ),
        ("libraries", environment is not None or None, libraries),
    ]


async def _started(backend: LocalBackend) -> None:
    try:
        await backend.start()
    finally:
        await backend.close()
