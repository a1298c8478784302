"""The cookie of a session: what it is worth, where, and for how long."""

import base64

import pytest
from starlette.responses import Response

from sandpod_gateway.auth.links import LEAD, RETIRE, ROTATE, Links, MemoryStore
from sandpod_gateway.console.session import SECONDS, Sessions, is_own
from support.clock import Clock

KEY = "sandpod_key"


async def sessions(store: MemoryStore, clock: Clock, public_url: str | None = None) -> Sessions:
    links = Links(store, lambda _: None, clock)
    await links.refresh()
    return Sessions(links, public_url, clock)


def request(method: str = "GET", scheme: str = "http", **headers: str) -> dict[str, object]:
    given = {"host": "pod.example", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    return {"type": "http", "method": method, "scheme": scheme, "path": "/console/", "headers": raw}


@pytest.mark.promise("console-session")
async def test_a_session_works_at_any_gateway_and_nowhere_without_its_secret() -> None:
    store, clock = MemoryStore(), Clock(1_800_000_000)
    first, second = await sessions(store, clock), await sessions(store, clock)
    sealed = first.sealed(KEY)
    assert KEY not in sealed
    assert KEY.encode() not in base64.urlsafe_b64decode(sealed + "==")
    assert second.opened(sealed) == KEY
    assert (await sessions(MemoryStore(), clock)).opened(sealed) is None
    assert sealed != first.sealed(KEY)
    for place in range(len(sealed)):
        # Not "B" for "A": the last character's lowest bits mean nothing.
        assert first.opened(sealed[:place] + ("A" if sealed[place] != "A" else "Q") + sealed[place + 1 :]) != KEY
    for wrong in ("", "é", "A" * 10_000, sealed[:20], f"{sealed}\n", "!" * 60):
        assert first.opened(wrong) is None


@pytest.mark.promise("console-session")
async def test_a_session_ends_in_time_and_outlives_the_replacement_of_its_secret() -> None:
    store, clock = MemoryStore(), Clock(1_800_000_000)
    here = await sessions(store, clock)
    clock.now += ROTATE + LEAD - 1  # the last second of the secret's own
    await here.links.refresh()
    sealed, short = here.sealed(KEY), here.sealed(KEY, 60)
    clock.now += 60
    assert (here.opened(short), here.opened(sealed)) == (None, KEY)
    clock.now += SECONDS - 61
    await here.links.refresh()
    assert here.opened(sealed) == KEY
    clock.now += 1
    assert here.opened(sealed) is None
    assert SECONDS < RETIRE - LEAD


async def test_a_cookie_is_for_tls_alone_where_there_is_tls() -> None:
    here = await sessions(MemoryStore(), Clock(1_800_000_000), "https://pod.example")
    plain = await sessions(MemoryStore(), Clock(1_800_000_000))
    for made, scheme, name, secure in (
        (here, "http", "__Host-sandpod", True),
        (plain, "https", "__Host-sandpod", True),
        (plain, "http", "sandpod", False),
    ):
        answer = Response()
        made.begin(answer, request(scheme=scheme), KEY)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{name}=")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert ("Secure" in cookie) is secure
        value = cookie.partition(";")[0].partition("=")[2]
        assert made.cookie(request(scheme=scheme, cookie=f"a=b; {name}={value}")) == value
    assert here.cookie(request(cookie=f"sandpod={here.sealed(KEY)}")) is None  # any host's page could have set it


@pytest.mark.promise("console-same-origin")
@pytest.mark.parametrize(
    ("method", "headers", "own"),
    [
        ("GET", {}, True),
        ("GET", {"sec_fetch_site": "same-origin"}, True),
        ("GET", {"sec_fetch_site": "none"}, True),
        ("GET", {"sec_fetch_site": "same-site"}, False),
        ("GET", {"sec_fetch_site": "cross-site"}, False),
        ("GET", {"origin": "https://elsewhere.example"}, False),
        ("POST", {}, False),
        ("POST", {"sec_fetch_site": "same-origin"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": "https://pod.example.elsewhere.example"}, False),
        ("POST", {"origin": "https://pod.example:444"}, False),
        ("POST", {"origin": "https://a@pod.example"}, False),
        ("POST", {"origin": "https://pod.example"}, True),
        ("DELETE", {"origin": "http://pod.example"}, True),
    ],
)
def test_only_a_request_of_an_own_page_has_a_session(method: str, headers: dict[str, str], *, own: bool) -> None:
    assert is_own(request(method, **headers)) is own
