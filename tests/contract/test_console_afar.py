"""The console as users far away have it: over TLS, by way of nginx, beside another tenant, with breaks and endings."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Page, Request, Route, expect

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyFile, make_key, parse_keys
from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.tenants import TenantBackend
from sandpod_gateway.runs import follow
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.browser import chromium
from support.gateway.console import Place, go_by, write
from support.gateway.server import listening
from support.ports import free_port
from support.servers.nginx import nginx

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

USERS: Final = {"hers": ("a", "alice"), "theirs": ("b", "alice"), "boss": ("a", "boss")}  # two of one name
PATIENCE: Final = 4  # seconds that nginx waits
SILENT: Final = f"import time\nprint('begun', flush=True)\ntime.sleep({2 * PATIENCE})\nprint('gone on')"
WAITS: Final = """\
import pathlib, time
print("begun", flush=True)
while not pathlib.Path("go").exists(): time.sleep(0.05)
print("gone on")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the keys are."""
    return tmp_path_factory.mktemp("afar")


@pytest.fixture(scope="module")
def fake() -> FakeBackend:
    """Of the other tenant."""
    return FakeBackend()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(folder: Path, fake: FakeBackend) -> AsyncIterator[Place]:
    now = datetime.now(UTC)
    keys, entries = dict[str, str](), []
    for who, (tenant, user) in USERS.items():
        role = {"role": "admin"} if who == "boss" else {}
        keys[who], entry = make_key(user=user, name="test", days=None, now=now, tenant=tenant, **role)
        entries.append(entry)
    (folder / "keys.yaml").write_bytes(KeyFile(keys=entries).dump())
    settings = Settings(auth=AuthSettings(keys_file=folder / "keys.yaml"), trusted_proxies=[ip_network("127.0.0.1")])
    backend = TenantBackend(FakeBackend(), {"a": LocalBackend(LocalSettings(warm=0)), "b": fake})
    gateway = Gateway(settings, backend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "WAIT_SECONDS", 0.2)
        async with listening(gateway, settings) as address, chromium() as browser:
            # What takes longer than nginx waits is done beforehand: the start of sandboxes.
            async with httpx2.AsyncClient(base_url=address, headers={"x-api-key": keys["hers"]}, timeout=60) as http:
                assert (await http.post("/api/v1/sandboxes", json={"name": "only-hers"})).status_code == 201
                assert (await http.post("/api/v1/runs", json={"code": "pass"})).status_code == 200
            with nginx(folder, address.removeprefix("http://"), patience=f"{PATIENCE}s") as proxy:
                place = Place(proxy.address, keys, browser, behind=address)
                yield place
        assert place.complaints == []


async def user(place: Place, who: str) -> Page:
    return await place.user(who, ignore_https_errors=True)  # the certificate's authority is the test's own


async def begin(page: Page, code: str) -> None:
    """Begin a program in the default sandbox."""
    await write(page, code)
    await page.locator("#run").click()
    await expect(page.locator("#output")).to_contain_text("begun")


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_users_of_two_tenants_side_by_side_see_nothing_of_each_other(place: Place) -> None:
    hers, theirs, boss = [await user(place, who) for who in USERS]
    [cookie] = await hers.context.cookies()
    assert (cookie["name"], cookie["secure"], cookie["httpOnly"]) == ("__Host-sandpod", True, True)
    await expect(theirs.get_by_text("No sandboxes yet.")).to_be_visible()
    await theirs.get_by_role("button", name="New sandbox").click()
    await theirs.get_by_label("Name").fill("only-theirs")
    await theirs.get_by_role("button", name="Create").click()
    await expect(theirs.get_by_role("heading", name="only-theirs")).to_be_visible()
    await theirs.goto(f"{place.address}/console/")
    await expect(theirs.locator("#rows tr")).to_have_count(1)
    await expect(hers.locator("#rows tr")).to_have_count(2)
    await expect(hers.locator("#rows")).to_contain_text("only-hers")
    handle = await hers.locator("#rows .handle").last.inner_text()
    for path in (f"sandboxes/{handle}", "sandboxes/a.sbx-000000000000"):
        await theirs.goto(f"{place.address}/console/{path}")
        await expect(theirs.get_by_text("404 · session_not_found")).to_be_visible()
    for path in ("all", f"all/{handle}", "all/none"):
        await theirs.goto(f"{place.address}/console/{path}")
        await expect(theirs.get_by_text("403 · forbidden")).to_be_visible()

    # An administrator has the sandboxes of the own tenant, how they are, and nothing of what is in them.
    await boss.get_by_role("link", name="Everybody's").click()
    await expect(boss.locator("#rows tr")).to_have_count(2)
    await expect(boss.locator("#rows")).not_to_contain_text("only-theirs")
    await boss.get_by_role("link", name="only-hers").click()
    await expect(boss.locator("#now")).to_contain_text("CPU")
    await expect(boss.get_by_role("row", name="Ready")).to_contain_text("The runner accepts runs.")
    await expect(boss.get_by_role("tab")).to_have_count(0)
    await boss.get_by_role("button", name="Close sandbox").click()
    await boss.get_by_role("button", name="Confirm").click()
    await expect(boss.locator("#rows tr")).to_have_count(1)
    await expect(hers.locator("#rows tr")).to_have_count(1)  # the table is live
    for page in (hers, theirs, boss):
        await page.context.close()


@pytest.mark.promise("heartbeat")
async def test_a_silent_program_outlasts_the_patience_of_a_proxy_and_its_output_goes_on(place: Place) -> None:
    page = await user(place, "hers")
    asked: list[str] = []

    def on_request(request: Request) -> None:
        if request.url.endswith("/events"):
            asked.append(request.url)

    page.on("request", on_request)
    await page.goto(f"{place.address}/console/sandboxes/default")
    await begin(page, SILENT)
    await expect(page.locator("#output")).to_contain_text("gone on")
    await expect(page.locator("#state")).to_contain_text("ok · exit code 0")
    assert len(asked) == 1, "the stream broke, and began anew"
    await page.get_by_role("tab", name="Terminal").click()
    await expect(page.locator("#terminal-state")).to_have_text("Connected")
    await page.locator("#screen").click()
    await page.keyboard.type("echo is-$((6 * 7))\n")
    await expect(page.locator(".xterm-rows")).to_contain_text("is-42")
    await page.context.close()


async def test_a_session_that_ends_leads_back_to_the_page_and_the_program_that_was_not_run(place: Place) -> None:
    page = await user(place, "hers")
    await page.goto(f"{place.address}/console/sandboxes/default")
    await write(page, "print('not lost')")

    async def ends(route: Route) -> None:
        await page.context.clear_cookies()  # as the browser does when their time is over
        await route.continue_()

    for ask, asked in (("#run", "**/api/v1/runs"), ("#tab-state", "**/sandboxes/default/state*")):
        await page.route(asked, ends, times=1)
        await page.locator(ask).click()
        await expect(page.get_by_text("Your session has ended")).to_be_visible()
        await page.get_by_label("API key").fill(place.keys["hers"])
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".cm-content")).to_contain_text("print('not lost')")
    await page.goto(f"{place.address}/console/")
    await page.context.clear_cookies()
    await expect(page.get_by_text("Your session has ended")).to_be_visible()  # the table asks by itself
    await page.get_by_label("API key").fill(place.keys["hers"])
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    await page.context.close()


async def test_a_browser_that_comes_back_from_sleep_goes_on_where_it_was(place: Place, tmp_path: Path) -> None:
    port = free_port()
    with nginx(tmp_path / "first", place.behind.removeprefix("http://"), port=port) as proxy:
        there = replace(place, address=proxy.address, complaints=[])
        page = await user(there, "hers")
        await page.goto(f"{there.address}/console/sandboxes/default")
        await begin(page, WAITS)
        await page.get_by_role("tab", name="Terminal").click()
        await expect(page.locator("#terminal-state")).to_have_text("Connected")
        await page.get_by_role("tab", name="Code").click()
        chrome = await page.context.new_cdp_session(page)
        await chrome.send("Page.setWebLifecycleState", {"state": "frozen"})
        await page.context.set_offline(True)
    # All connections are gone, and the program goes on while nobody hears it.
    async with httpx2.AsyncClient(base_url=place.behind, headers={"x-api-key": place.keys["hers"]}, timeout=60) as http:
        assert (await http.put("/api/v1/sandboxes/default/files/go", content=b"")).status_code == 201
    await chrome.send("Page.setWebLifecycleState", {"state": "active"})
    await expect(page.locator("#state")).to_have_text("Connecting again…")
    with nginx(tmp_path / "second", place.behind.removeprefix("http://"), port=port):
        await page.context.set_offline(False)
        await expect(page.locator("#output .line")).to_have_text(["begun", "gone on"])
        await expect(page.locator("#state")).to_contain_text("ok · exit code 0")
        await page.get_by_role("tab", name="Terminal").click()
        await page.locator("#screen").click()
        await page.keyboard.type("echo is-$((6 * 7))\n")
        await expect(page.locator(".xterm-rows")).to_contain_text("is-42")

        # The table says that nobody answers, for as long as nobody does.
        await page.goto(f"{there.address}/console/")
        await page.context.set_offline(True)
        await expect(page.locator("#notice")).to_contain_text("The server can't be reached.")
        await page.context.set_offline(False)
        await expect(page.locator("#notice")).to_have_text("")
        await page.context.close()
    assert [each for each in there.complaints if "ERR_" not in each and "htmx:" not in each] == []


async def test_a_sandbox_is_suspended_resumed_and_extended_by_hand_and_it_and_the_key_expire_under_an_open_page(
    place: Place, fake: FakeBackend, folder: Path
) -> None:
    page = await user(place, "theirs")
    await page.get_by_role("button", name="New sandbox").click()
    await page.get_by_label("Name").fill("kept")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="kept")).to_be_visible()
    [name] = [each for each, record in fake._live.items() if record.session == "kept"]
    fake._live[name] = replace(fake._live[name], persistent=True)
    confirm = page.get_by_role("button", name="Confirm")

    # In the table, and on its page.
    await page.goto(f"{place.address}/console/")
    row = page.get_by_role("row").filter(has_text="kept")
    for where, phase in ((row, row.locator(".phase")), (page.locator("#about"), page.locator("#about .phase"))):
        await where.get_by_role("button", name="Suspend kept").click()
        await confirm.click()
        await expect(phase).to_have_text("Suspended")
        await where.get_by_role("button", name="Resume").click()
        await expect(phase).to_have_text("Ready")
        if where is row:
            await go_by(row.get_by_role("link", name="kept"))
    await page.locator("#about").get_by_role("button", name="Extend").click()
    await page.get_by_label("For").select_option("8 hours")
    await page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    await expect(page.locator("#about .facts")).to_contain_text("in 7 h")

    # What is said of a sandbox that has ended is coded, and the page shows how it is now.
    record = fake._live[name]
    fake._live[name] = replace(record, expires=record.created)
    fake._changed.set()
    await write(page, "print('not run')")
    await page.locator("#run").click()
    await expect(page.locator("#state")).to_have_text("Not started")
    await expect(page.locator("#notice")).to_contain_text("expired")
    await expect(page.locator("#about .phase")).to_have_text("Expired")
    await expect(page.locator("#about").get_by_role("button", name="Extend")).to_have_count(0)

    # The page asks by itself, once the key is over.
    await page.goto(f"{place.address}/console/")
    await expect(page.locator("#rows tr").first).to_be_visible()
    file = folder / "keys.yaml"
    before = file.read_bytes()
    now = datetime.now(UTC)
    keys = [
        each.model_copy(update={"expires": now}) if each.tenant == "b" else each
        for each in parse_keys(before, "The file").keys
    ]
    file.write_bytes(KeyFile(keys=keys).dump())
    await expect(page.get_by_text("Your session has ended")).to_be_visible()
    await page.get_by_label("API key").fill(place.keys["theirs"])
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert").first).to_contain_text("mistyped, revoked or expired")
    file.write_bytes(before)
    await page.context.close()
