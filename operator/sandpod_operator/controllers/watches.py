"""All of kopf: its settings, its login, and one event handler for each watched kind.

kopf watches and nothing else here: raw events need no finalizer, no annotation and no write of kopf's own, and every
event only says "look again".
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from sandpod_api import names
from sandpod_kube.client import PAGE
from sandpod_kube.configuration import Access
from sandpod_kube.resources import LEASES, WATCHED, Resource, key_of
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.settings import OperatorSettings

Login = Callable[[], Awaitable[Access]]
Seen = Callable[[Resource, str | None, dict[str, Any]], None]


def create_sink(
    dispatcher: Dispatcher,
    on_heartbeat: Callable[[str, str], None],
    on_lost: Callable[[str], None] = lambda _: None,
) -> Seen:
    """Return the function that every watch event goes to.

    `on_heartbeat` gets each heartbeat's namespace and holder, `on_lost` each namespace whose heartbeat was deleted, as
    only who deletes all of a namespace does.
    """

    def seen(resource: Resource, kind: str | None, manifest: dict[str, Any]) -> None:
        if resource is LEASES:
            namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
            if name == names.LEASE_HEARTBEAT and kind == "DELETED":
                on_lost(namespace)
            elif name == names.LEASE_HEARTBEAT:
                on_heartbeat(namespace, manifest.get("spec", {}).get("holderIdentity", ""))
        elif kind == "DELETED":
            dispatcher.lost(key_of(resource, manifest), manifest["metadata"]["uid"])
        else:
            dispatcher.saw(resource, manifest)

    return seen


def _register(registry: kopf.OperatorRegistry, resource: Resource, seen: Seen) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=f"saw-{resource.plural}")
    async def saw(event: Any, **_: Any) -> None:
        seen(resource, event["type"], event["object"])


def create_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """Return kopf's settings."""
    result = kopf.OperatorSettings()
    # Namespaces and kinds are known: no rights to look for others are needed.
    result.scanning.disabled = True
    result.posting.enabled = False
    result.networking.request_timeout = settings.request_timeout
    result.watching.server_timeout = 300
    result.watching.inactivity_timeout = settings.watch_silence
    # A list of ten thousand pods is some 60 MB at once, and ten times that parsed. So is what kopf keeps for a while of
    # each object that it has had an event of.
    result.watching.chunk_size = PAGE
    result.queueing.idle_timeout = 0.5
    result.persistence.finalizer = f"{names.GROUP}/unused"
    result.persistence.progress_storage = result.persistence.diffbase_storage = _NoStorage()
    for resource in WATCHED:
        if resource.selector:
            result.watching.label_selectors[resource.plural] = resource.selector
    return result


async def watch(
    seen: Seen, login: Login, settings: OperatorSettings, *, ready: asyncio.Event, stop: asyncio.Event
) -> None:
    """Run kopf until `stop` is set; it sets `ready` when it has started. A return without `stop` is a fault."""
    registry = kopf.OperatorRegistry()
    for resource in WATCHED:
        _register(registry, resource, seen)

    @kopf.on.login(registry=registry, id="login")
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        # kopf asks again when the API server does not take a token any more, and so gets the renewed one.
        credentials = await login()
        return kopf.ConnectionInfo(
            server=credentials.server,
            ca_path=credentials.ca_path,
            insecure=credentials.insecure,
            scheme="Bearer" if credentials.token else None,
            token=credentials.token,
            certificate_path=credentials.certificate_path,
            private_key_path=credentials.private_key_path,
        )

    await kopf.operator(
        registry=registry,
        settings=create_settings(settings),
        namespaces=list(settings.namespaces),
        standalone=True,
        ready_flag=ready,
        stop_flag=stop,
    )


class _NoStorage(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """Keeps nothing: sees no object as changed, and remembers no handler's progress."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        pass

    store = purge = touch = fetch

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence
