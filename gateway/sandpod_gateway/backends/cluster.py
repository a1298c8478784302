"""The gateway's only way to the Kubernetes API: plain requests, watches, and the address of an exec.

Called by the modules of the Kubernetes backend; the only gateway module that imports `kubernetes`. It uses the client's
configuration, authentication and transport, but not its generated methods: those know no Sandbox, and their models
check and copy what is parsed anyway. It decides nothing and retries nothing.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio import client, config

from sandpod_api import names
from sandpod_api.environment import has_proxy
from sandpod_gateway.backends.cluster_errors import ConfigError, RefusedError, UnreachableError
from sandpod_gateway.backends.exec_protocol import ExecTarget
from sandpod_gateway.backends.kubernetes_settings import KubernetesSettings

logger = logging.getLogger(__name__)

# The client's asyncio half carries no types of its own.
_config: Any = config

REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request. Claims take milliseconds; what takes longer than this is not going to answer."""
CONNECT_TIMEOUT: Final = 5.0
"""Seconds to reach the API server."""
WATCH_SECONDS: Final = 240
"""Seconds after which the API server ends a watch, so that no watch outlives a load balancer's patience."""
TOKEN_INTERVAL: Final = 60.0
"""Seconds between two looks at credentials that a kubeconfig's plugin makes."""

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_JSON: Final = "application/json"
_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCH: Final = "application/merge-patch+json"


class Cluster:
    """One namespace of one cluster. All methods raise `ClusterError`."""

    def __init__(
        self, api: client.ApiClient, namespace: str, *, silence: float, refresher: asyncio.Task[None] | None = None
    ) -> None:
        self._api = api
        self._refresher = refresher
        self._silence = silence
        self.namespace = namespace

    @classmethod
    async def connect(cls, settings: KubernetesSettings) -> Self:
        """Read the configuration; no request is made.

        Raises:
            ConfigError: There is no usable one.
        """
        configuration = client.Configuration()
        refresher = None
        namespace: str | None
        try:
            if settings.kubeconfig is None and (_SERVICE_ACCOUNT / "token").exists():
                _config.load_incluster_config(client_configuration=configuration)
                namespace = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
            else:
                file = str(settings.kubeconfig) if settings.kubeconfig else None
                loader = await _config.load_kube_config(
                    config_file=file, context=settings.context, client_configuration=configuration, persist_config=False
                )
                namespace = _context_namespace(file, settings.context)
                refresher = asyncio.create_task(_renew_token(loader, configuration))
            configuration.client_session_kwargs = {"trust_env": has_proxy(str(configuration.host))}
            api = client.ApiClient(configuration)
        except (_config.ConfigException, OSError, ValueError) as error:
            raise ConfigError(f"no usable cluster configuration: {error}") from error
        api.user_agent = "sandpod-gateway"
        name = settings.namespace or namespace or "default"
        return cls(api, name, silence=settings.watch_silence, refresher=refresher)

    async def close(self) -> None:
        """Close all connections."""
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher
        await self._api.close()  # type: ignore[no-untyped-call]

    @property
    def host(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    async def get(self, plural: str, name: str) -> dict[str, Any]:
        """Return one object."""
        return await self._call("GET", self._path(plural, name))

    async def list_page(self, plural: str, query: dict[str, str]) -> dict[str, Any]:
        """Return one page of objects.

        Args:
            plural: The resource.
            query: labelSelector, limit, continue.
        """
        return await self._call("GET", self._path(plural), query=query)

    async def create(self, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object and return it."""
        return await self._call("POST", self._path(plural), body=body)

    async def json_patch(self, plural: str, name: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """Apply a JSON patch, all or nothing, and return the object."""
        return await self._call("PATCH", self._path(plural, name), body=operations, content_type=_JSON_PATCH)

    async def merge_patch(self, plural: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Merge into an object and return it."""
        return await self._call("PATCH", self._path(plural, name), body=body, content_type=_MERGE_PATCH)

    async def delete(self, plural: str, name: str) -> None:
        """Delete an object; what it owns goes after it."""
        await self._call("DELETE", self._path(plural, name), query={"propagationPolicy": "Background"})

    async def get_secret(self, namespace: str, name: str) -> dict[str, Any]:
        """Return a Secret."""
        return await self._call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")

    async def patch_secret(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Merge into a Secret; 409 when `body` names a resource version that it does not have any more."""
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        await self._call("PATCH", path, body=body, content_type=_MERGE_PATCH)

    async def allowed(self, verb: str, resource: str, *, group: str, subresource: str = "") -> bool:
        """Tell whether the gateway's own account may do something in the namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "resource": resource, "group": group}
        if subresource:
            attributes["subresource"] = subresource
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        return answer.get("status", {}).get("allowed") is True

    async def watch(self, plural: str, selector: str, resource_version: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the changes after a resource version, bookmarks included, until the API server ends the watch."""
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=self._silence)
        response = await self._send("GET", self._path(plural), query=query, timeout=timeout)
        try:
            async for line in response.content:
                yield json.loads(line)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(f"the watch broke: {type(error).__name__}") from error
        finally:
            # A watch has no end that could be waited for: without this, TLS would wait for the server's farewell.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def exec_target(self, pod: str, command: Sequence[str]) -> ExecTarget:
        """Return where to open an exec of the command in a sandbox's container, with streams and no terminal."""
        configuration = self._api.configuration
        auth = (await configuration.auth_settings()).get("BearerToken")
        params = [("container", names.CONTAINER), *(("command", word) for word in command)]
        params += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
        return ExecTarget(
            url=f"{self.host}/api/v1/namespaces/{self.namespace}/pods/{pod}/exec",
            params=params,
            headers={"authorization": auth["value"]} if auth and auth["value"] else {},
            ssl=self._api.rest_client.ssl_context,
            server_hostname=configuration.tls_server_name or None,
            proxy=configuration.proxy or None,
        )

    def _path(self, plural: str, name: str | None = None) -> str:
        path = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{plural}"
        return path if name is None else f"{path}/{name}"

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
        response = await self._send(method, path, query=query, body=body, content_type=content_type, timeout=timeout)
        try:
            answer = json.loads(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(f"the answer broke off: {type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise UnreachableError("the answer is no Kubernetes object")
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 # aiohttp's own object: it bounds connecting and reading apart
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
    ) -> aiohttp.ClientResponse:
        try:
            _, url, headers, body, _ = await self._api.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": _JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise _refusal(response.status, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, _config.ConfigException) as error:
            raise UnreachableError(_why(error)) from error
        return response


def _refusal(status: int, body: bytes) -> RefusedError:
    try:
        answer = json.loads(body)
        return RefusedError(status, str(answer.get("reason") or ""), str(answer.get("message") or ""))
    except (ValueError, AttributeError):
        return RefusedError(status)  # a proxy's page, say: nothing of it is for a log or a caller


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"can't connect to {error.host}:{error.port}"
    return f"the connection failed: {type(error).__name__}"


def _context_namespace(file: str | None, context: str | None) -> str | None:
    contexts, current = _config.list_kube_config_contexts(file)
    chosen = next((c for c in contexts if c["name"] == context), current)
    namespace = chosen["context"].get("namespace")
    return namespace if isinstance(namespace, str) else None


async def _renew_token(loader: Any, configuration: client.Configuration) -> None:
    """Renew what a kubeconfig's plugin gave, until cancelled; returns at once where there is no plugin."""
    while True:
        try:
            await _config.refresh_token(loader, configuration, interval=TOKEN_INTERVAL)
        except (_config.ConfigException, OSError, ValueError) as error:
            logger.warning("the kubeconfig's credentials can't be renewed: %s", error)
            await asyncio.sleep(TOKEN_INTERVAL)
        else:
            return
