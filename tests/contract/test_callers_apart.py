"""Nothing of a caller's is seen or changed by another tenant's or another user: with whatever the server offers.

What is tried is made from the server's own lists, see `support.gateway.walk`. The victim's sandbox is a real one.
"""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import McpError
from starlette.routing import Route

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.http import attempts
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.rest.operations import OPERATIONS
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.gateway.peers import ACCEPT, ENVELOPE, HEADERS, INITIALIZE, PING, call
from support.gateway.server import listening
from support.gateway.walk import CONTEXT, FILE, KEY, MAKES, NAME, SECRET, TELNET, Try, blank, never, tries
from support.ports import free_port
from support.servers.issuer import AUDIENCE, Issuer, provided

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

CALLERS: Final = {
    "victim": ("a", "alice"),
    "same name in another tenant": ("b", "alice"),
    "same tenant": ("a", "bob"),
    "same name in no tenant": ("", "alice"),
    "tenant that there is not": ("c", "alice"),
}
OTHERS: Final = list(CALLERS)[1:]
SIGNED_IN: Final = OTHERS[0]  # with a token of a provider; all others have keys
FOREVER: Final = "import sys, time\nsys.stdout.write('begun\\n')\nwhile True: time.sleep(60)"
NAMES: Final = ("sandbox", "name")  # by which a sandbox may be named
_LAST: Final = {"close_sandbox": 1, "sandbox_close_session": 1, "stop_run": 2}  # what ends what others need


class Started(TenantBackend):
    """One for several gateways: it starts with the first and ends with the last."""

    users = 0

    async def start(self) -> None:
        self.users += 1
        if self.users == 1:
            await super().start()

    async def close(self) -> None:
        self.users -= 1
        if self.users == 0:
            await super().close()


@dataclass
class Place:
    """A gateway, and the key or token of each caller."""

    gateway: Gateway
    address: str
    keys: dict[str, str]
    http: httpx2.AsyncClient

    def client(self, who: str) -> Client[Any]:
        return Client(StreamableHttpTransport(f"{self.address}/mcp", auth=self.keys[who]))

    async def answer(self, who: str, tool: str, arguments: dict[str, Any]) -> str:
        """Return all of the answer to a call, as it comes: a library's client takes twice the time."""
        params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
        headers = HEADERS | {"mcp-name": tool, "authorization": f"Bearer {self.keys[who]}"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return (await self.http.post("/mcp", json=body, headers=headers)).text


@asynccontextmanager
async def serving(backend: Started, issuer: Issuer, folder: Path, *systems: Any) -> AsyncIterator[Place]:
    keys: dict[str, str] = {}
    entries = []
    for who, (tenant, user) in CALLERS.items():
        if who == SIGNED_IN:
            keys[who] = issuer.token(sub=user, groups=[f"team-{tenant}"], exp=int(time.time()) + 36_000)
            continue
        keys[who], entry = make_key(user=user, name="k", days=None, now=datetime.now(UTC), tenant=tenant or None)
        entries.append(entry)
    path, port = folder / "keys.yaml", free_port()
    path.write_bytes(KeyFile(keys=entries).dump())
    oidc = OidcSettings(issuer=issuer.address, audience=AUDIENCE, tenant_pattern="team-(.+)")
    settings = Settings(
        auth=AuthSettings(keys_file=path, oidc=oidc),
        links=LinkSettings(public_url=f"http://127.0.0.1:{port}"),
        compat=CompatSettings(systems=list(systems)),
        packages=PackageSettings(index_url="http://127.0.0.1:1/", timeout=0.1),  # nothing is to be installed
    )
    gateway = Gateway(settings, backend)
    async with (
        listening(gateway, settings, port=port) as address,
        httpx2.AsyncClient(base_url=address, headers=ACCEPT, timeout=60) as http,
    ):
        yield Place(gateway, address, keys, http)


class Victim:
    """Has one of each thing that there is."""

    def __init__(self, place: Place, client: Client[Any]) -> None:
        self.place = place
        self.client = client
        self.things = {"name": NAME, "telnet": TELNET, "context": CONTEXT, "key": KEY}

    async def prepare(self) -> None:
        """Make what is not there, or not any more."""
        sandbox = self.things["sandbox"] = (await call(self.client, "create_sandbox", name=NAME))["sandbox"]
        await call(self.client, "write_file", path=FILE, text=SECRET, sandbox=sandbox)
        fields = {"sandbox": sandbox, "idempotency_key": KEY}
        self.things["run"] = (await call(self.client, "run_python_code", code=f"print('{SECRET}')", **fields))["run_id"]
        started = await call(self.client, "start_run", code=FOREVER, sandbox=sandbox, timeout=3000)
        self.things["background"] = started["run_id"]
        assert (await call(self.client, "read_run", run_id=started["run_id"], wait=60))["stdout"] == "begun\n"
        await call(self.client, "run_python_code", code="mine = 1", sandbox=sandbox, context=CONTEXT)
        began = await call(self.client, "install_packages", packages=["attrs"], sandbox=sandbox, wait=60)
        self.things["installation"] = began["installation"]

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
        return [*seen, [(each["sandbox"], each["status"]) for each in sandboxes]]

    def seen_in(self, text: str, given: object) -> list[str]:
        """Return what a text tells of all this, apart from what the asker itself said."""
        things = {*self.things.values(), SECRET, "begun"} - {NAME, TELNET}
        return [thing for thing in things if thing in text and thing not in str(given)]


@pytest.fixture(scope="module")
def backend() -> Started:
    # There is room for the victim's one sandbox in its tenant: another one would take a second.
    real = LocalBackend(LocalSettings(warm=0, max_sandboxes=1))
    return Started(FakeBackend(), {"a": real, "b": FakeBackend()})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with provided() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(backend: Started, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Victim]:
    """A caller of the gateway with its own tools."""
    async with serving(backend, issuer, tmp_path_factory.mktemp("own")) as place, place.client("victim") as client:
        yield Victim(place, client)


@pytest.mark.promise("tenants-apart", "owners-apart")
@pytest.mark.parametrize("system", ["own", "philschmid", "johanli233", "chrishayuk", "gaiar"])
async def test_no_tool_shows_or_changes_anothers_things_or_tells_them_from_none(
    backend: Started, victim: Victim, issuer: Issuer, tmp_path: Path, system: str
) -> None:
    await victim.prepare()
    things = victim.things
    async with AsyncExitStack() as stack:
        place = victim.place
        if system != "own":
            place = await stack.enter_async_context(serving(backend, issuer, tmp_path, system))
        tools = await (await stack.enter_async_context(Client(place.gateway.mcp))).list_tools()
        attempts = [each for tool in tools for each in tries(tool, things)]
        attempts.sort(key=lambda each: each.tool in MAKES)
        before = await victim.snapshot()
        answers: dict[Try, set[str]] = {attempt: set() for attempt in attempts}
        for who in OTHERS[:2]:
            for attempt in attempts:
                theirs = await place.answer(who, attempt.tool, attempt.theirs)
                assert not victim.seen_in(theirs, attempt.theirs), f"{who} learns of the victim by {attempt}"
                answers[attempt].add(blank(theirs, things.values()))
                if attempt.none != attempt.theirs:
                    none = await place.answer(who, attempt.tool, attempt.none)
                    same = blank(none, things.values()) == blank(theirs, things.values())
                    assert same, f"{who} tells the victim's from none by {attempt}: {theirs} {none}"
            for record in await backend.list(owner_of(*CALLERS[who])):
                await backend.delete(record.name)
        assert await victim.snapshot() == before
        # All of these calls would have done something: for the victim they do.
        done = {attempt.tool for attempt in attempts if attempt.theirs == attempt.none} | MAKES
        for attempt in sorted(attempts, key=lambda each: _LAST.get(each.tool, 0)):
            own = blank(await place.answer("victim", attempt.tool, attempt.theirs), things.values())
            done |= set() if own in answers[attempt] else {attempt.tool}
        assert done >= {attempt.tool for attempt in attempts}


async def reading(client: Client[Any], uri: str) -> str:
    try:
        return str(await client.read_resource(uri))
    except McpError as error:
        return str(error)


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_resource_or_prompt_shows_anothers_things_or_tells_them_from_none(victim: Victim) -> None:
    await victim.prepare()
    things = victim.things
    uris = [(each.uri_template, name) for each in await victim.client.list_resource_templates() for name in NAMES]
    for who in OTHERS:
        async with victim.place.client(who) as other:
            for template, name in uris:
                uri = template.replace("{sandbox}", things[name]).replace("{path*}", FILE)
                assert "{" not in uri, "say here what the template's parameters may name"
                theirs = await reading(other, uri)
                none = await reading(other, uri.replace(things[name], never(things[name])))
                assert blank(theirs, things.values()) == blank(none, things.values())
                assert not victim.seen_in(theirs, uri)
                assert SECRET in await reading(victim.client, uri)
            texts = [await reading(other, str(resource.uri)) for resource in await other.list_resources()]
            texts += [str(await other.get_prompt(prompt.name)) for prompt in await other.list_prompts()]
            assert len(texts) == 2
            assert not victim.seen_in("".join(texts), "")


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_route_shows_or_changes_anothers_files_or_tells_them_from_none(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "FREE", 10_000)  # refusals that are answered at once: these are many
    await victim.prepare()
    place, sandbox, tokens = victim.place, victim.things["sandbox"], ["", "x" * 43]
    async with place.client(OTHERS[0]) as other:
        await call(other, "write_file", path=FILE, text="theirs")
        links = [await call(other, "create_link", path=FILE, method=method) for method in ("get", "put")]
        links.append(await call(other, "fetch_workspace"))
    tokens += [link["url"].partition("?token=")[2] for link in links]
    found = place.gateway.http_app().routes
    routes = [route for route in found if isinstance(route, Route)]
    assert len(routes) == len(found) - 4, "but for MCP, REST, E2B's API and the console, which have tests of their own"
    before = await victim.snapshot()
    own = (await call(victim.client, "create_link", path=FILE, sandbox=sandbox))["url"]
    assert (await place.http.get(own)).text == SECRET

    async def asked(who: str, method: str, path: str) -> str:
        key = {"authorization": f"Bearer {place.keys[who]}"}
        answer = await place.http.request(method, path, headers=key, content=b"theirs")
        headers = sorted((name, value) for name, value in answer.headers.items() if name != "date")
        return f"{answer.status_code} {headers} {answer.text}"

    for route in routes:  # none of them looks at a key
        path = route.path.replace("{path:path}", FILE).replace("{version}", "0")
        assert "{" not in path.replace("{sandbox}", ""), "say here what the route's parameters may name"
        for who, method, token in product(OTHERS[:1], route.methods or (), tokens):
            urls = [f"{path.replace('{sandbox}', handle)}?token={token}" for handle in (sandbox, never(sandbox))]
            theirs, none = [await asked(who, method, url) for url in urls]
            assert blank(theirs, [sandbox]) == blank(none, [sandbox]), (method, path)
            assert not victim.seen_in(theirs, sandbox)
            assert "{sandbox}" not in route.path or theirs.startswith("403")
    assert await victim.snapshot() == before


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_what_administrators_see_of_anothers_sandbox_is_refused_to_all_others(victim: Victim) -> None:
    await victim.prepare()
    place, sandbox = victim.place, victim.things["sandbox"]
    before = await victim.snapshot()
    operations = [each for each in OPERATIONS if each.path.startswith("/admin/")]
    assert operations
    for who, operation in product(CALLERS, operations):
        key = {"authorization": f"Bearer {place.keys[who]}"}
        paths = [f"/api/v1{operation.path.replace('{sandbox}', name)}" for name in (sandbox, never(sandbox))]
        answers = [await place.http.request(operation.method, path, headers=key) for path in paths]
        assert [(each.status_code, each.json()["error"]) for each in answers] == [(403, "forbidden")] * 2, (
            who,
            operation,
        )
        assert answers[0].text == answers[1].text
    assert await victim.snapshot() == before


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_session_is_used_or_told_from_none_by_another(victim: Victim) -> None:
    place, http = victim.place, victim.place.http
    keys = {who: {"authorization": f"Bearer {key}"} for who, key in place.keys.items()}
    session = (await http.post("/mcp", json=INITIALIZE, headers=keys["victim"])).headers["mcp-session-id"]

    async def asked(who: str, method: str, session: str, messages: str) -> list[str]:
        headers = {**keys[who], "mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        answers = [await http.request(method, "/mcp", json=PING if method == "POST" else None, headers=headers)]
        answers.append(await http.post(messages, json=PING, headers=keys[who]))
        return [f"{answer.status_code} {answer.text}" for answer in answers]

    async with http.stream("GET", "/sse", headers=keys["victim"]) as events:
        lines = events.aiter_lines()
        messages = next(line.removeprefix("data: ") for line in [await anext(lines), await anext(lines)] if "/" in line)
        unknown = secrets.token_hex(16)
        for who, method in product(OTHERS, ("POST", "GET", "DELETE")):
            theirs = await asked(who, method, session, messages)
            none = await asked(who, method, unknown, f"{messages.rpartition('=')[0]}={unknown}")
            assert theirs == none, (who, method)
            assert all(answer.startswith("404") for answer in theirs), theirs
        own = await asked("victim", "POST", session, messages)
        assert [answer[:3] for answer in own] == ["200", "202"], own
