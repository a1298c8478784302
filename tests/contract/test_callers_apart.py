"""Nothing of a caller's is seen or changed by another tenant's or another user: with whatever the server offers.

What is tried is made from the server's own lists, see `support.walk`. The victim's sandbox is a real one.
"""

import itertools
import json
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
import pytest_asyncio
from fastmcp import Client
from fastmcp.exceptions import McpError
from starlette.routing import Route

from fakes.backend import FakeBackend
from sandpod_gateway.auth import sandbox_tokens
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.http import attempts
from sandpod_gateway.rest.operations import FILE as FILE_ROUTE
from sandpod_gateway.rest.operations import OPERATIONS, STARTED
from support.gateway.peers import INITIALIZE, PING, call
from support.servers.issuer import Issuer, provided
from support.walk.callers import CALLERS, OTHERS, Place, Started, Victim, calling, emptied, serving
from support.walk.console import PAGES, console_pairs
from support.walk.e2b import Asking, e2b_pairs, is_refused
from support.walk.recorded import Answer, Ask, Recorded, note
from support.walk.rest import Pair, rest_pairs
from support.walk.things import FILE, MAKES, SECRET, blank, never, tries

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_userns]

NAMES: Final = ("sandbox", "name")  # by which a sandbox may be named
_ENDS: Final = {"close_sandbox": 1, "sandbox_close_session": 1, "stop_run": 2}  # what ends what others need
_ROOM: Final = LocalSettings(max_sandboxes=100, max_sandboxes_per_owner=50)
Pairs = Callable[[str], Iterable[Pair]]  # to try, by who does
KNOWN: Final = {
    "user": {"same name in another tenant", "administrator of another tenant", *OTHERS[-2:]},
    "tenant": {"same tenant"},
}
"""Callers who may know of what has such a name: it is theirs, or another one of their own tenant's."""


@pytest.fixture(scope="module")
def backend() -> Started:
    # There is room for two sandboxes in the victim's tenant: its own and that of another user.
    real = LocalBackend(LocalSettings(warm=0, max_sandboxes=2))
    parts = {"a": real, "b": FakeBackend(_ROOM)}
    return Started(FakeBackend(_ROOM), {name: Recorded(part, name) for name, part in parts.items()})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with provided() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def at_once() -> Iterator[None]:
    """Refusals are answered at once, though these are many; what is signed counts as work."""
    code = sandbox_tokens._code

    def noted(*of: Any) -> bytes:
        note("signature")
        return code(*of)

    with mock.patch.object(attempts, "FREE", 10**6), mock.patch.object(sandbox_tokens, "_code", noted):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(backend: Started, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Victim]:
    """A caller of the gateway with its own tools."""
    async with serving(backend, issuer, tmp_path_factory.mktemp("own")) as place, place.client("victim") as client:
        yield Victim(place, client)


async def settled(backend: Started, place: Place) -> dict[str, Asking]:
    """Give each of the others a new sandbox of its own, so that no request makes one; return them with their tokens."""
    found = {}
    for who in OTHERS:
        await emptied(backend, who, all_of_it=True)
        await place.ask(who, Ask("PUT", f"/api/v1/sandboxes/default/files/{FILE}", content=b"theirs"))
        found[who] = await asking(place, who, "default")
    assert [who for who, each in found.items() if not each.token] == OTHERS[-1:]
    return found


async def asking(place: Place, who: str, sandbox: str) -> Asking:
    came = await place.ask(who, Ask("POST", f"/e2b/sandboxes/{sandbox}/connect", {"content-type": "application/json"}))
    body = json.loads(came.text)
    return Asking(body.get("sandboxID", "sbx-222222222222"), body.get("envdAccessToken", ""))


async def walked(
    backend: Started,
    victim: Victim,
    place: Place,
    of: Callable[[str], Iterable[Pair]],
    who_tries: Sequence[str] = OTHERS,
) -> None:
    """Try all pairs as each of the others: what comes, and the work for it, is the same for the victim's and for none.

    Afterwards nothing of the victim's has changed; and for the victim itself each of these requests does something.
    """
    before, answers = await victim.snapshot(), defaultdict[int, set[str]](set)
    for who in who_tries:
        role = CALLERS[who][2]
        for number, pair in sorted(enumerate(of(who)), key=lambda each: each[1].makes):
            if role == "admin" and not (pair.admin or pair.kind in KNOWN):
                continue  # as any other user
            theirs, none = [await asked(backend, place, who, pair, ask) for ask in (pair.theirs, pair.none)]
            assert not victim.seen_by(who, theirs, pair), f"{who} learns of the victim by {pair}"
            answers[number].add(hidden(victim, theirs))
            if pair.admin and role != "admin" and theirs.status != 401:
                assert (theirs.status, none.status) == (403, 403), (who, pair)
            if pair.theirs == pair.none or who in KNOWN.get(pair.kind, ()):
                continue  # it names nothing, or what the caller may know of
            assert hidden(victim, theirs) == hidden(victim, none), f"{who} tells the victim's from none by {pair}"
            assert worked(victim, theirs) == worked(victim, none), (
                f"the victim's costs {who} other work than none by {pair}"
            )
    assert await victim.snapshot() == before
    idle: dict[tuple[str, str], bool] = {}
    for number, pair in sorted(enumerate(of("victim")), key=lambda each: each[1].ends):
        if pair.ends and not await victim.has_all():
            await victim.prepare()
        now = next(itertools.islice(of("victim"), number, None))  # with what there is now
        came = await place.ask("administrator" if now.admin else "victim", now.theirs, begin=now.begins)
        same = hidden(victim, came) in answers[number] and now.theirs != now.none
        idle[now.route] = idle.get(now.route, True) and same and not now.makes
    assert {route for route, is_idle in idle.items() if is_idle and not is_refused(route[1])} == set()


async def asked(backend: Started, place: Place, who: str, pair: Pair, ask: Ask) -> Answer:
    came = await place.ask(who, ask)
    if pair.makes:  # a later one is to make it, too
        await emptied(backend, who)
    return came


def hidden(victim: Victim, came: Answer) -> str:
    """Return what came, without what names the victim's things or differs between any two answers."""
    headers = [each for each in came.headers if each[0] not in {"date", "content-length", "etag"}]
    return blank(f"{came.status} {sorted(headers)} {came.text}", victim.blanked)


def worked(victim: Victim, came: Answer) -> list[str]:
    """Return the work that an answer took, without what names the victim's things."""
    return sorted(blank(each, victim.blanked) for each in came.work.elements())


@pytest.mark.promise("tenants-apart", "owners-apart")
@pytest.mark.parametrize("systems", [(), ("philschmid", "johanli233", "chrishayuk", "gaiar")], ids=["own", "others"])
async def test_no_tool_shows_or_changes_anothers_things_or_tells_them_from_none(
    backend: Started, victim: Victim, issuer: Issuer, tmp_path: Path, systems: tuple[str, ...]
) -> None:
    await victim.prepare()
    async with AsyncExitStack() as stack:
        place = victim.place
        if systems:
            place = await stack.enter_async_context(serving(backend, issuer, tmp_path, *systems))
        await settled(backend, victim.place)
        tools = await (await stack.enter_async_context(Client(place.gateway.mcp))).list_tools()

        def pairs(_: str) -> Iterator[Pair]:
            for tool in tools:
                for each in tries(tool.name, tool.input_schema, victim.things):
                    asks = [calling(tool.name, given) for given in (each.theirs, each.none)]
                    makes, ends = tool.name in MAKES, _ENDS.get(tool.name, 0)
                    yield Pair(("tool", tool.name), "argument", asks, makes=makes, ends=ends)

        await walked(backend, victim, place, pairs, OTHERS[:3])


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_operation_of_rest_shows_or_changes_anothers_things_or_tells_them_from_none(
    backend: Started, victim: Victim
) -> None:
    await victim.prepare()
    place = victim.place
    await settled(backend, place)
    servers = (place.gateway.mcp, place.gateway._rest_tools)
    found = [await server.get_tool(each.tool) for each in (*OPERATIONS, STARTED) for server in servers]
    found += [
        await place.gateway.mcp.get_tool(name) for name in ("run_python_code", "run_js_code", "run_shell_command")
    ]
    tools = {tool.name: tool for tool in found if tool is not None}
    routes = {(method, path) for method, path in place.routes["rest"] if method != "HEAD" or path == FILE_ROUTE}
    assert {pair.route for pair in rest_pairs(tools, victim.things)} == routes
    await walked(backend, victim, place, lambda _: rest_pairs(tools, victim.things))


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_route_of_e2b_shows_or_changes_anothers_things_or_tells_them_from_none(
    backend: Started, victim: Victim
) -> None:
    await victim.prepare()
    place = victim.place
    askers = {**await settled(backend, place), "victim": await asking(place, "victim", victim.things["sandbox"])}
    await walked(
        backend, victim, place, lambda who: e2b_pairs(place.routes["e2b"], place.methods, victim.things, askers[who])
    )


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_page_of_the_console_shows_or_changes_anothers_things_or_tells_them_from_none(
    backend: Started, victim: Victim
) -> None:
    await victim.prepare()
    await settled(backend, victim.place)
    place = victim.place
    assert {each for each in place.routes["console"] if each[0] != "HEAD"} == PAGES.keys()
    await walked(backend, victim, place, lambda _: console_pairs(place.routes["console"], victim.things))


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
                assert blank(theirs, victim.blanked) == blank(none, victim.blanked)
                assert not victim.seen_in(theirs, uri)
                assert SECRET in await reading(victim.client, uri)
            texts = [await reading(other, str(resource.uri)) for resource in await other.list_resources()]
            texts += [str(await other.get_prompt(prompt.name)) for prompt in await other.list_prompts()]
            assert len(texts) == 2
            assert not victim.seen_in("".join(texts), "")


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_no_route_shows_or_changes_anothers_files_or_tells_them_from_none(
    victim: Victim,
) -> None:
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

    for route in routes:  # none of them looks at a key
        path = route.path.replace("{path:path}", FILE).replace("{version}", "0")
        assert "{" not in path.replace("{sandbox}", ""), "say here what the route's parameters may name"
        for who, method, token in product(OTHERS[:1], route.methods or (), tokens):
            urls = [f"{path.replace('{sandbox}', handle)}?token={token}" for handle in (sandbox, never(sandbox))]
            theirs, none = [await place.ask(who, Ask(method, url, content=b"theirs")) for url in urls]
            assert blank(str(theirs), [sandbox]) == blank(str(none), [sandbox]), (method, path)
            assert not victim.seen_in(str(theirs), sandbox)
            if "{sandbox}" in route.path:
                assert theirs.status == 403
                assert worked(victim, theirs) == worked(victim, none), (method, path)
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
