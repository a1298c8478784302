"""A small Kubernetes API server over HTTP, for the tests of the Kubernetes backend that need no cluster."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from sandpod_api import names
from sandpod_gateway.backends.kubernetes.streams.exec_stream import V5
from sandpod_kube.errors import RefusedError
from support.gateway.kube_objects import Json, MemoryApi
from support.servers.exec_server import Handler, echo

_PREFIX = f"/apis/{names.API_VERSION}/namespaces/tests"


class KubeServer:
    """Sandboxes of namespace `tests`, told to watchers; behind each exec an echo or what a test wants; faults too."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.denied: set[str] = set()
        self.broken: dict[str, int] = {}
        self.execs: list[str] = []
        self.behind: Handler = echo
        self.tokens: set[str] = set()
        self.touches: list[Json] = []
        self.secrets: dict[str, Json] = {}
        self.pools: dict[str, Json] = {}
        self.told: list[Json] = []  # Events
        self._sockets: list[web.WebSocketResponse] = []
        self._events: list[Json] = []
        self._watchers: list[asyncio.Queue[Json]] = []

    def show(self, kind: str, body: Json) -> Json:
        """Store a Sandbox (or remove it) and tell the watchers."""
        stored = self.api.put(body)
        if kind == "DELETED":
            self.api.objects.pop(body["metadata"]["name"], None)
        self._tell(kind, stored)
        return stored

    def _tell(self, kind: str, body: Json) -> None:
        event = {"type": kind, "object": body}
        self._events.append(event)
        for queue in self._watchers:
            queue.put_nowait(event)

    async def cut_execs(self) -> None:
        """Close all exec streams from the server's side."""
        for socket in self._sockets:
            await socket.close()

    def application(self) -> web.Application:
        @web.middleware
        async def guard(request: web.Request, handler: object) -> web.StreamResponse:
            self.tokens.add(request.headers.get("authorization", ""))
            for part, status in self.broken.items():
                if part in request.path:
                    return _status(RefusedError(status, "Broken", "as the test said"))
            try:
                response: web.StreamResponse = await handler(request)  # type: ignore[operator]
            except RefusedError as error:
                return _status(error)
            return response

        app = web.Application(middlewares=[guard])
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        app.router.add_get(f"{_PREFIX}/{names.TEMPLATES}", self._templates)
        app.router.add_get(f"{_PREFIX}/{names.TEMPLATES}/{{name}}", self._template)
        app.router.add_get(f"{_PREFIX}/{names.POOLS}", self._pools)
        app.router.add_patch(f"{_PREFIX}/{names.POOLS}/{{name}}/scale", self._scale)
        app.router.add_get(f"{_PREFIX}/{names.SANDBOXES}", self._sandboxes)
        app.router.add_get(f"{_PREFIX}/{names.SANDBOXES}/{{name}}", self._get)
        app.router.add_patch(f"{_PREFIX}/{names.SANDBOXES}/{{name}}", self._patch)
        app.router.add_delete(f"{_PREFIX}/{names.SANDBOXES}/{{name}}", self._delete)
        app.router.add_get("/api/v1/namespaces/tests/events", self._told)
        app.router.add_get("/api/v1/namespaces/tests/pods/{name}/exec", self._exec)
        app.router.add_get("/api/v1/namespaces/tests/secrets/{name}", self._secret)
        app.router.add_patch("/api/v1/namespaces/tests/secrets/{name}", self._patch_secret)
        app.router.add_post("/api/v1/namespaces/tests/secrets", self._create_secret)
        return app

    async def _review(self, request: web.Request) -> web.Response:
        asked = (await request.json())["spec"]["resourceAttributes"]
        right = f"{asked['verb']} {asked['resource']}"
        return web.json_response({"status": {"allowed": right not in self.denied}})

    async def _templates(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [], "metadata": {}})

    async def _template(self, request: web.Request) -> web.Response:
        return web.json_response(await self.api.get(names.TEMPLATES, request.match_info["name"]))

    async def _pools(self, _: web.Request) -> web.Response:
        return web.json_response({"items": list(self.pools.values()), "metadata": {}})

    async def _told(self, request: web.Request) -> web.Response:
        if "list events" in self.denied:
            raise RefusedError(403, "Forbidden", "no such right")
        wanted = dict(each.partition("=")[::2] for each in request.query["fieldSelector"].split(","))
        about = {field.removeprefix("involvedObject."): value for field, value in wanted.items()}
        return web.json_response(
            {"items": [each for each in self.told if about.items() <= each["involvedObject"].items()]}
        )

    async def _scale(self, request: web.Request) -> web.Response:
        pool = self.pools.get(request.match_info["name"])
        if pool is None:
            raise RefusedError(404, "NotFound", "no such pool")
        change = await request.json()
        assert change.keys() == {"spec"}
        assert change["spec"].keys() == {"replicas"}
        pool["spec"] |= change["spec"]
        return web.json_response({"kind": "Scale", "spec": change["spec"]})

    async def _sandboxes(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            found = await self.api.list_page(names.SANDBOXES, {"labelSelector": request.query["labelSelector"]})
            return web.json_response(found | {"metadata": {"resourceVersion": str(len(self._events))}})
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Json] = asyncio.Queue()
        for event in self._events[int(request.query["resourceVersion"]) :]:
            queue.put_nowait(event)
        self._watchers.append(queue)
        while True:
            await response.write(json.dumps(await queue.get()).encode() + b"\n")

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(await self.api.get(names.SANDBOXES, request.match_info["name"]))

    async def _patch(self, request: web.Request) -> web.Response:
        name, change = request.match_info["name"], await request.json()
        if request.content_type == "application/merge-patch+json":
            self.touches.append(change)
            known = change["metadata"].get("resourceVersion")
            if known not in {None, self.api.objects[name]["metadata"]["resourceVersion"]}:
                raise RefusedError(409, "Conflict")
            changed = await self.api.merge_patch(names.SANDBOXES, name, change)
        else:
            changed = await self.api.json_patch(names.SANDBOXES, name, change)
        self._tell("MODIFIED", changed)
        return web.json_response(changed)

    async def _delete(self, request: web.Request) -> web.Response:
        await self.api.delete(names.SANDBOXES, request.match_info["name"])
        return web.json_response({"status": "Success"})

    async def _secret(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.secrets:
            raise RefusedError(404, "NotFound")
        return web.json_response(self.secrets[name])

    async def _create_secret(self, request: web.Request) -> web.Response:
        secret = await request.json()
        if secret["metadata"]["name"] in self.secrets:
            raise RefusedError(409, "AlreadyExists")
        self.secrets[secret["metadata"]["name"]] = secret
        return web.json_response(secret)

    async def _patch_secret(self, request: web.Request) -> web.Response:
        secret, change = self.secrets[request.match_info["name"]], await request.json()
        version = secret["metadata"]["resourceVersion"]
        if change.get("metadata", {}).get("resourceVersion", version) != version:
            raise RefusedError(409, "Conflict")
        data = secret.get("data", {}) | change["data"]
        secret["data"] = {name: value for name, value in data.items() if value is not None}
        secret["metadata"]["resourceVersion"] = str(int(version) + 1)
        return web.json_response(secret)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self.api.objects:
            raise RefusedError(404, "NotFound")
        assert request.query.getall("command") == [*names.SHIELDED_COMMAND, "attach"]
        assert request.query["container"] == names.CONTAINER
        socket = web.WebSocketResponse(protocols=(V5,))
        await socket.prepare(request)
        self.execs.append(name)
        self._sockets.append(socket)
        await self.behind(socket)
        return socket


def _status(error: RefusedError) -> web.Response:
    return web.json_response(
        {"kind": "Status", "reason": error.reason, "message": str(error)},
        status=error.status,
        content_type="application/json",
    )


def write_kubeconfig(path: Path, server: str) -> Path:
    """Write a kubeconfig with a namespace `tests` and return its path."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "tests"}}],
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@asynccontextmanager
async def serve(kube: KubeServer, folder: Path) -> AsyncIterator[Path]:
    """Run the server and give a kubeconfig for it."""
    server = TestServer(kube.application())
    await server.start_server(shutdown_timeout=0.1)
    try:
        yield write_kubeconfig(folder / "kubeconfig", str(server.make_url("/")))
    finally:
        await server.close()
