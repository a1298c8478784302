"""The one module that talks to the Kubernetes API: plain requests and watches.

It takes configuration, credentials and connections from the official client's asyncio half, and sends plain JSON
through it: the client's typed models cost more than the calls, know no Sandbox, and its own leader election can't
create a Lease (it sends a `pretty` parameter that its validation refuses). It decides nothing and retries nothing.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.config import ConfigException

from sandpod_kube.configuration import Access, Configuration, has_proxy
from sandpod_kube.errors import ClusterError, UnreachableError, refusal
from sandpod_kube.resources import PODS, Resource, key_of
from sandpod_telemetry import attributes, tracing

PAGE: Final = 500  # objects of one page of a list: about 1 MB
CONNECT_TIMEOUT: Final = 5.0  # seconds to reach the API server
WATCH_SECONDS: Final = 240  # until the API server ends a watch, so that none outlives a load balancer's patience

_JSON: Final = "application/json"
_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_APPLY_PATCH: Final = "application/apply-patch+yaml"

_DRY_RUN: Final = {"dryRun": "All"}

Json = dict[str, Any]
Query = Mapping[str, str] | None
OnWrite = Callable[[str, str, str], None]  # called after each write with its verb, kind and result: ok or error


class KubeClient:
    """Calls to one API server. All of them raise `ClusterError`."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        manager: str,
        timeout: float,
        on_write: OnWrite = lambda _verb, _kind, _result: None,
    ) -> None:
        """Open no connection yet.

        `manager` is the user agent, and the name under which the API server keeps who wrote which field; `timeout` is
        the longest wait for one answer, seconds.
        """
        settings = configuration.settings
        settings.client_session_kwargs = {"trust_env": has_proxy(str(settings.host))}
        self.host = str(settings.host)
        self.namespace = configuration.namespace
        self._configuration = configuration
        self._manager = manager
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT_TIMEOUT))
        self._on_write = on_write
        self._api = client.ApiClient(settings)

    async def close(self) -> None:
        """Close all connections."""
        if (renewal := self._configuration.renewal) is not None:
            renewal.cancel()
            await asyncio.wait({renewal})
        await self._api.close()  # type: ignore[no-untyped-call]

    async def access(self) -> Access:
        """Return how to connect to the API server, with current credentials."""
        settings = self._configuration.settings
        value = (await settings.auth_settings()).get("BearerToken", {}).get("value") or ""
        return Access(
            server=self.host,
            ca_path=settings.ssl_ca_cert,
            insecure=not settings.verify_ssl,
            token=value.removeprefix("Bearer ").removeprefix("bearer ") or None,
            certificate_path=settings.cert_file,
            private_key_path=settings.key_file,
            ssl_context=self._api.rest_client.ssl_context,
            server_hostname=settings.tls_server_name or None,
            proxy=settings.proxy or None,
        )

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return one object."""
        return await self._request("GET", resource.path(namespace, name))

    async def list_page(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> Json:
        """Return one page of objects; the query says labelSelector, limit, continue."""
        return await self._request("GET", resource.path(namespace), query=query)

    async def pages(self, resource: Resource, namespace: str) -> AsyncIterator[Json]:
        """Yield all objects that a resource selects; read page by page, so that few are held at once."""
        query = {"limit": str(PAGE)}
        if resource.selector:
            query["labelSelector"] = resource.selector
        while True:
            page = await self.list_page(resource, namespace, query)
            for item in page.get("items") or ():
                # Items of a list carry no kind of their own.
                yield {**resource.header, **item}
            follow = page.get("metadata", {}).get("continue")
            if not follow:
                return
            query["continue"] = follow

    async def create(self, resource: Resource, manifest: Json, namespace: str | None = None) -> Json:
        """Create an object, in the namespace that it names if no other is given, and return it as it is now."""
        path = resource.path(namespace or key_of(resource, manifest).namespace)
        return await self._write("create", "POST", resource, path, manifest)

    async def apply(self, resource: Resource, manifest: Json) -> Json:
        """Apply the manifest on the server's side, taking over fields that others own."""
        path = resource.path(*key_of(resource, manifest)[1:])
        return await self._write("apply", "PATCH", resource, path, manifest, kind=_APPLY_PATCH, force="true")

    async def replace(self, resource: Resource, manifest: Json) -> Json:
        """Write an object whole; ConflictError when its resourceVersion is not the current one."""
        return await self._write("update", "PUT", resource, resource.path(*key_of(resource, manifest)[1:]), manifest)

    async def patch_status(self, resource: Resource, namespace: str, name: str, status: Json) -> Json:
        """Merge a status and return the object."""
        path, change = f"{resource.path(namespace, name)}/status", {"status": status}
        return await self._write("patch_status", "PATCH", resource, path, change, kind=_MERGE_PATCH)

    async def patch(self, resource: Resource, namespace: str, name: str, change: Json) -> Json:
        """Merge a change and return the object; ConflictError when the resourceVersion in it is not the current one."""
        return await self._write("patch", "PATCH", resource, resource.path(namespace, name), change, kind=_MERGE_PATCH)

    async def resize(self, namespace: str, name: str, uid: str, container: str, requests: Mapping[str, str]) -> Json:
        """Ask for other requests of a pod's container in place, and return it; DeniedError for another pod."""
        spec = {"containers": [{"name": container, "resources": {"requests": dict(requests)}}]}
        path, change = f"{PODS.path(namespace, name)}/resize", {"metadata": {"uid": uid}, "spec": spec}
        return await self._write("resize", "PATCH", PODS, path, change, kind=_STRATEGIC_PATCH)

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: list[Json]) -> Json:
        """Apply a JSON patch, all or nothing, and return the object."""
        path = resource.path(namespace, name)
        return await self._write("patch", "PATCH", resource, path, operations, kind=_JSON_PATCH)

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: Mapping[str, str] | None = None
    ) -> Json:
        """Delete an object with that uid and resourceVersion, or with any, and what it owns after it.

        Return the object while it is still going, or a Status once it is gone.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        options |= {"preconditions": dict(preconditions)} if preconditions else {}
        return await self._write("delete", "DELETE", resource, resource.path(namespace, name), options)

    async def ask(self, path: str, body: Json) -> Json:
        """Return the answer to an object that the API server does not keep, such as a SelfSubjectAccessReview."""
        return await self._request("POST", path, body)

    async def try_create(self, resource: Resource, manifest: Json, namespace: str) -> Json:
        """Return an object as it would be made; none is made."""
        return await self._request("POST", resource.path(namespace), manifest, query=_DRY_RUN)

    async def try_patch(self, resource: Resource, namespace: str, name: str, change: Json) -> Json:
        """Return an object as a merged change would leave it; nothing is changed."""
        path = resource.path(namespace, name)
        return await self._request("PATCH", path, change, query=_DRY_RUN, kind=_MERGE_PATCH)

    async def watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str], resource_version: str, *, silence: float
    ) -> AsyncGenerator[Json, None]:
        """Yield the changes after a resource version, bookmarks included, until the API server ends the watch.

        The query says labelSelector or fieldSelector. After `silence` seconds without an event the connection counts as
        dead.
        """
        query = {
            **query,
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        response = await self._send("GET", resource.path(namespace), query=query, timeout=timeout)
        try:
            async for line in response.content:
                yield json.loads(line)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(f"the watch broke: {type(error).__name__}") from error
        finally:
            # A watch has no end that could be waited for: without this, TLS would wait for the server's close_notify.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def _write(
        self, verb: str, method: str, resource: Resource, path: str, body: Any, *, kind: str = _JSON, **query: str
    ) -> Json:
        if method != "DELETE":
            query["fieldManager"] = self._manager
        known = {attributes.METHOD: method, attributes.KIND: resource.kind}
        try:
            with tracing.span(f"{verb} {resource.kind}", known, kind="client"):
                answer = await self._request(method, path, body, query=query, kind=kind)
        except ClusterError:
            self._on_write(verb, resource.kind, "error")
            raise
        self._on_write(verb, resource.kind, "ok")
        return answer

    async def _request(self, method: str, path: str, body: Any = None, query: Query = None, kind: str = _JSON) -> Json:
        response = await self._send(method, path, body, query=query, kind=kind, timeout=self._timeout)
        try:
            answer = json.loads(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(f"the answer of {self.host} broke off: {type(error).__name__}") from error
        except ValueError as error:
            raise UnreachableError(f"the answer of {self.host} is not JSON") from error
        if not isinstance(answer, dict):
            raise UnreachableError(f"the answer of {self.host} is not a Kubernetes object")
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own object: bounds connecting and reading apart
        query: Query = None,
        kind: str = _JSON,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": _JSON, "Content-Type": kind, "User-Agent": self._manager}
        url = f"{self.host}{quote(path)}" + (f"?{urlencode(query)}" if query else "")
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            answer = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise refusal(response.status, *_explained(await response.read()))
        except (aiohttp.ClientError, OSError, TimeoutError, ConfigException) as error:
            raise UnreachableError(f"no answer from {self.host}: {_why(error)}") from error
        return response


def _explained(body: bytes) -> tuple[str, str]:
    """Return the reason and the message of a Status; nothing of a proxy's page may reach a log or a caller."""
    try:
        answer = json.loads(body)
        return str(answer.get("reason") or ""), str(answer.get("message") or "")
    except (ValueError, AttributeError):
        return "", ""


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "can't connect"
    return f"the connection failed: {type(error).__name__}"
