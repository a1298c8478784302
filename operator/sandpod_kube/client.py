"""The one operator module that talks to the Kubernetes API.

It takes configuration, credentials and connections from the official client's asyncio half, and sends plain JSON
through it: the client's typed models cost more than the calls, and its own leader election can't create a Lease (it
sends a `pretty` parameter that its validation refuses), so no call goes through them. Every answer but success becomes
one of `errors.py`. It decides nothing; kopf's own watches get their credentials here.
"""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config
from yaml import YAMLError

from sandpod_kube.environment import has_proxy
from sandpod_kube.errors import ApiError, ClusterError, ConflictError, NotFoundError, RefusedError, UnreachableError
from sandpod_kube.resources import Resource, key_of

FIELD_MANAGER: Final = "sandpod-operator"
PAGE: Final = 500
"""Objects of one answer to a list."""
_MAX_TEXT: Final = 2048
_JSON: Final = "application/json"
_ERRORS: Final[dict[int, type[ApiError]]] = {
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
    422: RefusedError,
}
_TRY_LATER: Final = 429
_SERVER_ERROR: Final = 500

OnWrite = Callable[[str, str, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What kopf needs to open its watches. Paths are files that the official client keeps."""

    server: str
    ca_path: str | None
    insecure: bool
    token: str | None
    certificate_path: str | None
    private_key_path: str | None


class Cluster:
    """Plain calls to the API server. All of them raise `ClusterError`."""

    def __init__(self, configuration: client.Configuration, on_write: OnWrite, *, patience: float) -> None:
        self._configuration = configuration
        self._on_write = on_write
        self._patience = patience
        configuration.client_session_kwargs = {"trust_env": has_proxy(str(configuration.host))}
        self._client = client.ApiClient(configuration)

    @classmethod
    async def connect(cls, on_write: OnWrite, *, patience: float) -> Self:
        """Load the configuration: of the pod's service account, else of kubectl.

        Args:
            on_write: Called after each write with its verb, kind and result.
            patience: Longest wait for one answer, seconds.

        Raises:
            UnreachableError: There is none; the text says what to do.
        """
        configuration = client.Configuration()
        try:
            if os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError, YAMLError) as error:
            text = f"no usable Kubernetes configuration ({error}); set KUBECONFIG or run in a pod"
            raise UnreachableError(text) from error
        return cls(configuration, on_write, patience=patience)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Return one object."""
        return await self._request("GET", resource.path(namespace, name))

    async def pages(self, resource: Resource, namespace: str) -> AsyncIterator[dict[str, Any]]:
        """Yield all objects of a kind that concern the operator; read page by page, so that few are held at once."""
        query = {"limit": str(PAGE)}
        if resource.selector:
            query["labelSelector"] = resource.selector
        while True:
            page = await self._request("GET", resource.path(namespace), query=query)
            for item in page.get("items") or ():
                # Items of a list carry no kind of their own.
                yield {"apiVersion": resource.api_version, "kind": resource.kind, **item}
            follow = page.get("metadata", {}).get("continue")
            if not follow:
                return
            query["continue"] = follow

    async def check(self, resource: Resource, namespace: str) -> None:
        """Return when objects of the kind can be listed; raises as every call does."""
        await self._request("GET", resource.path(namespace), query={"limit": "1"})

    async def create(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Make an object and return it as it is now."""
        path = resource.path(key_of(resource, manifest).namespace)
        with self._counted("create", resource):
            return await self._request("POST", path, manifest, query={"fieldManager": FIELD_MANAGER})

    async def apply(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Apply the manifest on the server's side, taking over fields that others own."""
        key = key_of(resource, manifest)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        with self._counted("apply", resource):
            return await self._request(
                "PATCH",
                resource.path(key.namespace, key.name),
                manifest,
                query=query,
                content_type="application/apply-patch+yaml",
            )

    async def replace(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write an object whole; ConflictError when its resourceVersion is not the current one."""
        key = key_of(resource, manifest)
        with self._counted("update", resource):
            return await self._request(
                "PUT", resource.path(key.namespace, key.name), manifest, query={"fieldManager": FIELD_MANAGER}
            )

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, status: dict[str, Any]
    ) -> dict[str, Any]:
        """Merge a status and return the object."""
        with self._counted("patch_status", resource):
            return await self._request(
                "PATCH",
                f"{resource.path(namespace, name)}/status",
                {"status": status},
                query={"fieldManager": FIELD_MANAGER},
                content_type="application/merge-patch+json",
            )

    async def patch(self, resource: Resource, namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge a change and return the object; ConflictError when the resourceVersion in it is not the current one."""
        with self._counted("patch", resource):
            return await self._request(
                "PATCH",
                resource.path(namespace, name),
                change,
                query={"fieldManager": FIELD_MANAGER},
                content_type="application/merge-patch+json",
            )

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: dict[str, str]
    ) -> dict[str, Any]:
        """Delete the object that the preconditions (uid, resourceVersion) name.

        Returns:
            The object while it is still going, or a Status once it is gone.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        with self._counted("delete", resource):
            return await self._request("DELETE", resource.path(namespace, name), options)

    async def credentials(self) -> Credentials:
        """Return current credentials; a token that has been renewed meanwhile is read anew."""
        settings = (await self._configuration.auth_settings()).get("BearerToken")
        value = (settings["value"] if settings else None) or ""
        return Credentials(
            server=self._configuration.host,
            ca_path=self._configuration.ssl_ca_cert,
            insecure=not self._configuration.verify_ssl,
            token=value.removeprefix("Bearer ").removeprefix("bearer ") or None,
            certificate_path=self._configuration.cert_file,
            private_key_path=self._configuration.key_file,
        )

    @contextlib.contextmanager
    def _counted(self, verb: str, resource: Resource) -> Iterator[None]:
        try:
            yield
        except ClusterError:
            self._on_write(verb, resource.kind, "error")
            raise
        self._on_write(verb, resource.kind, "ok")

    async def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = _JSON,
    ) -> dict[str, Any]:
        headers = {"Accept": _JSON, "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._configuration.host}{quote(path)}" + (f"?{urlencode(query)}" if query else "")
        try:
            limit = aiohttp.ClientTimeout(total=self._patience)
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=limit)
            text: bytes = await answer.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"no answer from {self._configuration.host}: {_words(error)}") from error
        return _parse(answer.status, text)


def _words(error: Exception) -> str:
    return str(error)[:_MAX_TEXT] or type(error).__name__


def _parse(status: int, text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {"message": text[:_MAX_TEXT].decode("utf-8", "replace")}
    if status < 400 and isinstance(answer, dict):  # noqa: PLR2004 - HTTP's own border
        return answer
    detail = answer if isinstance(answer, dict) else {}
    message = str(detail.get("message", ""))[:_MAX_TEXT]
    if status == _TRY_LATER or status >= _SERVER_ERROR:
        raise UnreachableError(f"the API server answered {status}: {message}")
    raise _ERRORS.get(status, ApiError)(status, str(detail.get("reason", "")), message)
