"""The Secrets of the gateways of one installation: keys that they share, what sign-ins leave, and callers' API keys.

Whoever installs the gateway makes them. The gateway may read and patch the first two kinds, only read the last, each by
its name, and can't create any.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import KeyFile, parse_keys
from sandpod_gateway.auth.links import Stored
from sandpod_gateway.backends.kubernetes.cluster import Cluster, start_error, translated
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.errors import SandpodError, StartError
from sandpod_kube.client import KubeClient
from sandpod_kube.errors import ClusterError, ConflictError, NotFoundError
from sandpod_kube.follow import follow
from sandpod_kube.resources import SECRETS

LINKS_ENTRY: Final = "keys.json"  # of the Secret with the gateways' keys: what links are signed with
SIGN_IN_ENTRY: Final = "sign-in.key"  # of the same Secret: what sign-ins are sealed and signed with
KEYS_ENTRY: Final = "keys.yaml"  # of the Secret of API keys
MAX_TRIES: Final = 5  # lost races for a Secret


class SharedSecret:
    """Keys that gateways share, in an entry of a Secret (namespace/name); implements `links.SecretStore`."""

    def __init__(self, cluster: Callable[[], Cluster], reference: str, entry: str) -> None:
        self._cluster = cluster
        self._entry = entry
        self._namespace, _, self._name = reference.partition("/")

    async def read(self) -> Stored | None:
        """Return what is there; None when there is no such Secret."""
        with translated("the gateways' keys were read"):
            secret = await _read(self._cluster().client, self._namespace, self._name)
        if secret is None:
            return None
        return Stored(_content(secret, self._entry), str(secret["metadata"]["resourceVersion"]))

    async def replace(self, content: bytes, version: str) -> bool:
        """Write, unless it is not that version any more."""
        body = {"metadata": {"resourceVersion": version}, "data": {self._entry: base64.b64encode(content).decode()}}
        with translated("the gateways' keys were written"):
            try:
                await self._cluster().client.patch(SECRETS, self._namespace, self._name, body)
            except ConflictError:
                return False
        return True


class SignInSecrets:
    """What sign-ins leave, in Secrets (namespace/name); implements `sign_in_state.StatePlaces`.

    Each change names its entries alone, so that those of two gateways don't meet.
    """

    def __init__(self, cluster: Callable[[], Cluster], references: Sequence[str]) -> None:
        self._cluster = cluster
        self._places = [reference.split("/") for reference in references]
        self.count = len(references)

    async def read(self, place: int) -> dict[str, bytes]:
        """Return the entries of a Secret. Raises SandpodError: backend_unavailable, also where there is no Secret."""
        namespace, name = self._places[place]
        with translated("what sign-ins left was read"):
            secret = await self._cluster().client.get(SECRETS, namespace, name)
        return {entry: base64.b64decode(content) for entry, content in (secret.get("data") or {}).items()}

    async def change(self, place: int, entries: dict[str, bytes | None]) -> None:
        """Write these entries of a Secret, and remove those that are None."""
        namespace, name = self._places[place]
        data = {
            each: None if content is None else base64.b64encode(content).decode() for each, content in entries.items()
        }
        with translated("what sign-ins left was written"):
            await self._cluster().client.patch(SECRETS, namespace, name, {"data": data})


class KeySecret:
    """API keys in a Secret (namespace/name); implements `auth.key_source.KeySource`.

    It is watched, so that a key that is revoked is refused by all gateways as soon as the Secret says so.
    """

    def __init__(self, cluster: Callable[[], Cluster], reference: str, silence: float) -> None:
        """Read that Secret; a watch without an event for `silence` seconds counts as dead."""
        self._cluster = cluster
        self._silence = silence
        self._namespace, _, self._name = reference.partition("/")
        # The right to one Secret allows a list and a watch with this selector, and no other.
        self._query = {"fieldSelector": f"metadata.name={self._name}"}

    async def read(self) -> KeyFile:
        """Return the keys; without a Secret there are none."""
        with translated("the API keys were read"):
            page = await self._cluster().client.list_page(SECRETS, self._namespace, self._query)
            return await self._parsed(page.get("items") or [])

    async def follow(self, use: Callable[[KeyFile], None]) -> None:
        """Pass the keys on, now and at each change."""
        with translated("the API keys were watched"):
            client = self._cluster().client
            async with aclosing(follow(client, SECRETS, self._namespace, self._query, silence=self._silence)) as found:
                async for secrets in found:
                    use(await self._parsed(secrets))

    async def change(self, change: Callable[[KeyFile], KeyFile]) -> KeyFile:
        """Replace the keys; see `KeySource.change`. The Secret must be there, since the gateway can't make one."""
        with translated("the API keys were changed"):
            return await _changed(self._cluster().client, f"{self._namespace}/{self._name}", change, make=False)

    async def _parsed(self, secrets: list[dict[str, Any]]) -> KeyFile:
        secret = secrets[0] if secrets else None
        return await asyncio.to_thread(_keys, secret, f"{self._namespace}/{self._name}")  # thousands take a while


async def change_keys(reference: str, change: Callable[[KeyFile], KeyFile], *, make: bool) -> None:
    """Change the API keys in a Secret (namespace/name), with the rights of the caller's kubeconfig.

    With `make`, a Secret that is not there yet is made. Raises StartError: the cluster can't be used; or as `_changed`.
    """
    cluster = None
    try:
        cluster = await Cluster.connect(KubernetesSettings(namespace=reference.partition("/")[0]))
        await _changed(cluster.client, reference, change, make=make)
    except ClusterError as error:
        raise start_error(error, cluster) from error
    finally:
        if cluster is not None:
            await cluster.close()


async def _changed(client: KubeClient, reference: str, change: Callable[[KeyFile], KeyFile], *, make: bool) -> KeyFile:
    """Change the keys and return them; `change` is called anew when somebody else was quicker.

    Raises StartError: there is no Secret. SandpodError: others change it again and again; or what `change` raises.
    """
    namespace, _, name = reference.partition("/")
    for _ in range(MAX_TRIES):
        with contextlib.suppress(ConflictError):
            secret = await _read(client, namespace, name)
            if secret is None and not make:
                step = "With the chart's defaults it is sandpod/sandpod-keys; `sandpod keys create` makes it."
                raise StartError(ErrorCode.NOT_FOUND, f"There is no Secret {reference}.", next_step=step)
            old = await asyncio.to_thread(_keys, secret, reference)
            keys = change(old)
            if keys is not old:
                await _write(client, namespace, name, secret, keys)
            return keys
    message, step = "The keys were changed by others again and again.", "Try again."
    raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)


async def _read(client: KubeClient, namespace: str, name: str) -> dict[str, Any] | None:
    try:
        return await client.get(SECRETS, namespace, name)
    except NotFoundError:
        return None


async def _write(client: KubeClient, namespace: str, name: str, old: dict[str, Any] | None, keys: KeyFile) -> None:
    data = {KEYS_ENTRY: base64.b64encode(await asyncio.to_thread(keys.dump)).decode()}
    if old is None:
        await client.create(SECRETS, {**SECRETS.header, "metadata": {"name": name}, "data": data}, namespace)
    else:
        body = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": data}
        await client.patch(SECRETS, namespace, name, body)


def _content(secret: dict[str, Any] | None, entry: str) -> bytes:
    return base64.b64decode(((secret or {}).get("data") or {}).get(entry, ""))


def _keys(secret: dict[str, Any] | None, reference: str) -> KeyFile:
    return parse_keys(_content(secret, KEYS_ENTRY), f"The entry {KEYS_ENTRY} of Secret {reference}")
