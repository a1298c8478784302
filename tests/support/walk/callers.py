"""A server of two tenants, a caller who has one of each thing in a real sandbox, and others who try to get at them."""

import asyncio
import json
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import unquote

import httpx2
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from sandpod_gateway.app import Gateway
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.key_file import WatchedFile
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.e2b.envd.connect import envelope
from sandpod_gateway.e2b.envd.process_forms import process_id
from sandpod_gateway.e2b.envd.rpc import Rpc
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from sandpod_gateway.terminals.service import is_terminal
from support.gateway.peers import ACCEPT, ENVELOPE, HEADERS, call
from support.gateway.server import listening
from support.ports import free_port
from support.servers.issuer import AUDIENCE, Issuer
from support.walk.recorded import Answer, Ask, Recorded, answer
from support.walk.rest import Pair
from support.walk.things import CONTEXT, FILE, KEY, NAME, SECRET, TELNET

CALLERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "victim": ("a", "alice", "user"),
    "same name in another tenant": ("b", "alice", "user"),
    "same tenant": ("a", "bob", "user"),
    "another tenant": ("b", "carol", "user"),
    "administrator of another tenant": ("b", "boss", "admin"),
    "same name in no tenant": ("", "alice", "user"),
    "tenant that there is not": ("c", "alice", "user"),
    "administrator": ("a", "chief", "admin"),  # of the victim's tenant, who may see what is going on
}
OTHERS: Final = list(CALLERS)[1:-1]
SIGNED_IN: Final = OTHERS[0]  # with a token of a provider; all others have keys
BEGUN: Final = "what only its own program says\n"
FOREVER: Final = f"import sys, time\nsys.stdout.write({BEGUN!r})\nwhile True: time.sleep(60)"
JSON: Final = {"content-type": "application/json"}


class Started(TenantBackend):
    """One for several gateways: it starts with the first and ends with the last."""

    users = 0
    keys: Path | None = None

    async def start(self) -> None:
        self.users += 1
        if self.users == 1:
            await super().start()

    async def close(self) -> None:
        self.users -= 1
        if self.users == 0:
            await super().close()

    def key_source(self) -> WatchedFile | None:
        return None if self.keys is None else WatchedFile(self.keys)


@dataclass
class Place:
    """A gateway, and the key or token of each caller.

    Attributes:
        app: What it serves, for requests of this process.
        routes: Of each of its faces, the methods with their paths.
        methods: Of E2B's services, by their names.
    """

    gateway: Gateway
    address: str
    keys: dict[str, str]
    http: httpx2.AsyncClient
    app: ASGIApp
    routes: dict[str, list[tuple[str, str]]]
    methods: list[str]

    def client(self, who: str) -> Client[Any]:
        return Client(StreamableHttpTransport(f"{self.address}/mcp", auth=self.keys[who]))

    async def ask(self, who: str, ask: Ask, *, begin: bool = False) -> Answer:
        """Return the answer to a request with a caller's credential, unless it has another one."""
        own = {} if "e2b-sandbox-id" in ask.headers else {"authorization": f"Bearer {self.keys[who]}"}
        return await answer(self.app, ask, own, begin=begin)


def calling(tool: str, arguments: dict[str, Any]) -> Ask:
    """Return the request that calls a tool."""
    params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {**HEADERS, "mcp-name": tool, "content-type": "application/json"}
    return Ask("POST", "/mcp", headers, json.dumps(body).encode())


@asynccontextmanager
async def serving(backend: Started, issuer: Issuer, folder: Path, *systems: Any) -> AsyncIterator[Place]:
    keys: dict[str, str] = {}
    entries = []
    for who, (tenant, user, role) in CALLERS.items():
        if who == SIGNED_IN:
            keys[who] = issuer.token(sub=user, groups=[f"team-{tenant}"], exp=int(time.time()) + 36_000)
            continue
        scope: dict[str, Any] = {"tenant": tenant or None, "role": role}
        keys[who], entry = make_key(user=user, name="k", days=None, now=datetime.now(UTC), **scope)
        entries.append(entry)
    path, port = folder / "keys.yaml", free_port()
    path.write_bytes(KeyFile(keys=entries).dump())
    backend.keys = path
    oidc = OidcSettings(issuer=issuer.address, audience=AUDIENCE, tenant_pattern="team-(.+)")
    settings = Settings(
        auth=AuthSettings(oidc=oidc, change_keys=True),
        links=LinkSettings(public_url=f"http://127.0.0.1:{port}"),
        compat=CompatSettings(systems=list(systems)),
        audit=AuditSettings(sink="file", path=folder / "audit"),
        packages=PackageSettings(index_url="http://127.0.0.1:1/", timeout=0.1),  # nothing is to be installed
    )
    gateway = Gateway(settings, Recorded(backend, "backend"))
    async with (
        listening(gateway, settings, port=port) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT, timeout=60) as http,
    ):
        app, routes, methods = app_of(gateway)
        async with begun(app):
            yield Place(gateway, address, keys, http, app, routes, methods)


@asynccontextmanager
async def begun(app: Starlette) -> AsyncIterator[None]:
    """Let an app's own tasks run in the meantime, which one task must begin and end."""
    ready, over = asyncio.Event(), asyncio.Event()

    async def lives() -> None:
        async with app.router.lifespan_context(app):
            ready.set()
            await over.wait()

    task = asyncio.create_task(lives())
    await asyncio.wait({task, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
    yield
    over.set()
    await task


def app_of(gateway: Gateway) -> tuple[Starlette, dict[str, list[tuple[str, str]]], list[str]]:
    """Return what a gateway serves, the routes of its faces, as they are made, and the methods of E2B's services."""
    found: dict[str, list[tuple[str, str]]] = {}
    methods: list[str] = []

    def noted(face: str) -> Any:
        def made(*, routes: list[Route], **options: Any) -> Starlette:
            of = found.setdefault(face, [])
            of += [(method, each.path.replace(":path}", "}")) for each in routes for method in each.methods or ()]
            return Starlette(routes=routes, **options)

        return mock.patch(f"sandpod_gateway.{face}.app.Starlette", made)

    def made(*of: Any) -> Rpc:
        services = Rpc(*of)
        methods.extend(services.methods)
        return services

    with noted("rest"), noted("e2b"), noted("console"), mock.patch("sandpod_gateway.e2b.app.Rpc", made):
        return gateway.http_app(), found, methods


class Victim:
    """Has one of each thing that there is."""

    def __init__(self, place: Place, client: Client[Any]) -> None:
        self.place = place
        self.client = client
        self.said = defaultdict[str, set[str]](set)
        self.things = {"name": NAME, "telnet": TELNET, "context": CONTEXT, "key": KEY, "user": "alice", "tenant": "a"}

    async def prepare(self) -> None:
        """Make what is not there, or not any more."""
        sandbox = self.things["sandbox"] = (await call(self.client, "create_sandbox", name=NAME))["sandbox"]
        await call(self.client, "write_file", path=FILE, text=SECRET, sandbox=sandbox)
        fields = {"sandbox": sandbox, "idempotency_key": KEY}
        self.things["run"] = (await call(self.client, "run_python_code", code=f"print('{SECRET}')", **fields))["run_id"]
        started = await call(self.client, "start_run", code=FOREVER, sandbox=sandbox, timeout=3000)
        self.things["background"] = started["run_id"]
        assert (await call(self.client, "read_run", run_id=started["run_id"], wait=60))["stdout"] == BEGUN
        await call(self.client, "run_python_code", code="mine = 1", sandbox=sandbox, context=CONTEXT)
        began = await call(self.client, "install_packages", packages=["attrs"], sandbox=sandbox, wait=60)
        self.things["installation"] = began["installation"]
        self.things["process"] = str(process_id(self.things["background"]))
        key = Ask("POST", "/api/v1/keys", JSON, json.dumps({"name": secrets.token_hex(8)}).encode())
        self.things["key_id"] = json.loads((await self.place.ask("victim", key)).text)["key_id"]
        await self._inside()

    async def has_all(self) -> bool:
        """Return whether its sandbox is still there."""
        sandboxes = (await call(self.client, "list_sandboxes"))["sandboxes"]
        return self.things["sandbox"] in {each["sandbox"] for each in sandboxes if each["status"] == "Ready"}

    async def _inside(self) -> None:
        """Have a terminal and a watcher by E2B's API."""
        connected = await self.place.ask("victim", Ask("POST", f"/e2b/sandboxes/{self.things['sandbox']}/connect"))
        token = self.things["token"] = json.loads(connected.text)["envdAccessToken"]
        headers = {"e2b-sandbox-id": self.things["sandbox"], "x-access-token": token}
        streamed = {**headers, "content-type": "application/connect+json"}
        start = envelope({"process": {"cmd": "bash"}, "pty": {"size": {"cols": 80, "rows": 24}}})
        ask = Ask("POST", "/e2b/process.Process/Start", streamed, start)
        assert '"start"' in (await self.place.ask("victim", ask, begin=True)).text
        runs = (await call(self.client, "list_runs", sandbox=self.things["sandbox"]))["runs"]
        self.things["terminal"] = next(run["run_id"] for run in runs if is_terminal(run["run_id"]))
        self.things["pty"] = str(process_id(self.things["terminal"]))
        content = json.dumps({"path": "."}).encode()
        ask = Ask("POST", "/e2b/filesystem.Filesystem/CreateWatcher", {**headers, **JSON}, content)
        self.things["watcher"] = json.loads((await self.place.ask("victim", ask)).text)["watcherId"]

    @property
    def blanked(self) -> list[str]:
        """What of this to leave out where two texts are compared."""
        return [thing for thing in self.things.values() if len(thing) > 1]

    async def snapshot(self) -> list[Any]:
        """Return all that there is."""
        of = {"sandbox": self.things["sandbox"]}
        looks: list[tuple[str, dict[str, Any]]] = [
            ("list_files", {**of, "recursive": True}),
            ("read_file", {**of, "path": FILE}),
            ("list_runs", of),
            ("read_run", {"run_id": self.things["run"], "wait": 0}),
            ("read_run", {"run_id": self.things["background"], "wait": 0}),
            ("list_contexts", of),
            ("get_installation", {"installation": self.things["installation"]}),
        ]
        seen = [await call(self.client, tool, **arguments) for tool, arguments in looks]
        assert all("next" not in each or "installation" in each for each in seen), seen
        sandboxes = (await call(self.client, "list_sandboxes"))["sandboxes"]
        keys = json.loads((await self.place.ask("victim", Ask("GET", "/api/v1/keys"))).text)["keys"]
        return [
            *seen,
            [(each["key_id"], each["expires_at"]) for each in keys],
            [(each["sandbox"], each["status"]) for each in sandboxes],
        ]

    def seen_by(self, who: str, came: Answer, pair: Pair) -> list[str]:
        """Return what an answer tells a caller of all this; audit records tell what its tenant asked for, too."""
        said = self.said[CALLERS[who][0]]
        said |= {thing for thing in self.things.values() if thing in unquote(str(pair.theirs))}
        given = [pair.theirs, *(said if pair.route[1] == "/audit" else ())]
        return self.seen_in(str(came), unquote(str(given)))

    def seen_in(self, text: str, given: object) -> list[str]:
        """Return what a text tells of all this, apart from what the asker itself said."""
        things = {*self.things.values(), SECRET, BEGUN.strip()} - {NAME, TELNET, "alice", "a"}
        return [thing for thing in things if thing in text and thing not in str(given)]


async def emptied(backend: TenantBackend, who: str, *, all_of_it: bool = False) -> None:
    """Close what a caller has made, but for the default sandbox."""
    tenant, user, _ = CALLERS[who]
    if who == OTHERS[-1]:
        return  # nothing can be made there
    for record in await backend.list(owner_of(tenant, user)):
        if all_of_it or record.session != "default":
            await backend.delete(record.name)
