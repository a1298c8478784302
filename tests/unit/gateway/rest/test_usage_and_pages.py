"""Usage by the REST API, lists in pages, and what a client has already."""

import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.api_keys import KeyFile, make_key
from sandpod_gateway.rest.operations import OPERATIONS
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.server import listening

USERS: dict[str, dict[str, Any]] = {
    "=ann": {"tenant": "a"},
    "bob": {"tenant": "a"},
    "carol": {"tenant": "b"},
    "boss": {"tenant": "a", "role": "admin"},
    "root": {"role": "admin"},
}


class Place:
    def __init__(self, address: str, keys: dict[str, str]) -> None:
        self._address, self._keys = f"{address}/api/v1", keys

    async def get(self, who: str, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(headers={"x-api-key": self._keys[who], **(headers or {})}) as http:
            return await http.get(self._address + path, params=query)

    async def rows(self, who: str, **query: Any) -> list[dict[str, Any]]:
        answer = await self.get(who, "/usage", **query)
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()["rows"]
        return rows

    async def make(self, who: str, name: str) -> str:
        async with httpx2.AsyncClient(headers={"x-api-key": self._keys[who]}) as http:
            answer = await http.post(f"{self._address}/sandboxes", json={"name": name})
            return str(answer.json()["sandbox"])


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    made = {user: make_key(user=user, name="k", days=None, now=datetime.now(UTC), **of) for user, of in USERS.items()}
    path = folder / "keys.yaml"
    path.write_bytes(KeyFile(keys=[entry for _, entry in made.values()]).dump())
    settings = Settings(auth=AuthSettings(keys_file=path))
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        yield Place(address, {user: key for user, (key, _) in made.items()})


async def paged(here: Place, who: str, **query: Any) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the rows of each page of a report."""
    while True:
        page = (await here.get(who, "/usage", **query)).json()
        yield page["rows"]
        if page["next"] is None:
            return
        query["cursor"] = page["next"]


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_users_see_what_they_used_and_administrators_what_their_tenant_or_all_did(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        for user in USERS:
            await here.get(user, "/sandboxes")
        sandbox = await here.make("carol", "hers")
        seen = {who: {row["user"] for row in await here.rows(who)} for who in USERS}
        assert seen == {
            **{who: {who} for who in ("=ann", "bob", "carol")},
            "boss": {"=ann", "bob", "boss"},
            "root": set(USERS),
        }
        assert {row["tenant"] for row in await here.rows("boss", by="tenant")} == {"a"}
        assert {row["tenant"] for row in await here.rows("root", by="tenant", tenant="b")} == {"b"}
        assert [row["sandbox"] for row in await here.rows("root", by="sandbox", user="carol")] == [sandbox]
        for who in ("boss", "bob"):
            assert await here.rows(who, by="sandbox") == await here.rows(who, tenant="b") == []
        assert await here.rows("bob", user="=ann") == await here.rows("bob", since="2999-01-01") == []
        wrongs = {"tenant": 403, "moon": 400}
        assert {each: (await here.get("bob", "/usage", by=each)).status_code for each in wrongs} == wrongs
        pages = [[row["user"] for row in page] async for page in paged(here, "root", limit=3)]
        assert pages == [["root", "=ann", "bob"], ["boss", "carol"]]
        for wrong in ("since", "format", "cursor", "limit"):
            assert (await here.get("bob", "/usage", None, **{wrong: "x"})).status_code == 400
        by_query = await here.get("boss", "/usage", format="csv")
        for answer in (by_query, await here.get("boss", "/usage", {"accept": "text/csv"})):
            assert answer.headers["content-type"] == "text/csv; charset=utf-8"
            assert [row["user"] for row in csv.DictReader(io.StringIO(answer.text))] == ["'=ann", "bob", "boss"]


async def test_each_list_comes_in_pages_that_stay_right_while_it_changes(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        made = [await here.make("bob", f"s{number}") for number in range(5)]
        first = await here.get("bob", "/sandboxes", limit=2)
        whole = [each["sandbox"] for each in (await here.get("bob", "/sandboxes")).json()["sandboxes"]]
        assert set(whole) == set(made)
        assert first.headers["link"] == f'</api/v1/sandboxes?limit=2&cursor={first.json()["next"]}>; rel="next"'
        async with httpx2.AsyncClient(headers={"x-api-key": here._keys["bob"]}) as http:
            await http.delete(f"{here._address}/sandboxes/{whole[1]}")  # the entry that the cursor names
        rest = await here.get("bob", "/sandboxes", limit=2, cursor=first.json()["next"])
        last = await here.get("bob", "/sandboxes", limit=2, cursor=rest.json()["next"])
        pages = [each["sandbox"] for page in (first, rest, last) for each in page.json()["sandboxes"]]
        assert (pages, last.json()["next"], "link" in last.headers) == (whole, None, False)
        for operation in OPERATIONS:
            if operation.listing is not None:
                path = operation.path.format(sandbox="default")
                for wrong in ({"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"cursor": "!"}, {"cursor": "WzFd"}):
                    answer = await here.get("root", path, **wrong)
                    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument"), (path, wrong)


async def test_what_a_client_has_already_is_not_sent_again(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.make("bob", "one")
        for path in ("/sandboxes", "/keys", "/openapi.json"):
            answer = await here.get("bob", path)
            known = {"if-none-match": f'"other", {answer.headers["etag"]}'}
            again = await here.get("bob", path, headers=known)
            assert (again.status_code, again.content) == (304, b""), path
            assert again.headers["etag"] == answer.headers["etag"]
        async with httpx2.AsyncClient(headers={"x-api-key": here._keys["bob"], "idempotency-key": "once"}) as http:
            made = {(await http.post(f"{here._address}/sandboxes")).json()["sandbox"] for _ in range(2)}
        assert len(made) == 1
        known = {"if-none-match": (await here.get("bob", "/sandboxes")).headers["etag"]}
        await here.make("bob", "two")
        assert (await here.get("bob", "/sandboxes", headers=known)).status_code == 200
