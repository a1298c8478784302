"""Keys by the REST API: who sees, makes, rotates and revokes which, and never one with more rights."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth import key_management
from sandpod_gateway.auth.api_keys import KeyFile, hash_key, make_key
from sandpod_gateway.auth.key_file import read_keys
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings
from support.gateway.server import listening
from support.servers.issuer import AUDIENCE, provided

USERS: dict[str, dict[str, Any]] = {
    "ann": {"tenant": "a"},
    "few": {"user": "ann", "tenant": "a", "tools": ["core", "account"], "templates": ["small"], "days": 9},
    "reader": {"user": "ann", "tenant": "a", "read_only": True},
    "core": {"user": "ann", "tenant": "a", "tools": ["core"]},
    "bob": {"tenant": "a"},
    "carol": {"tenant": "b"},
    "boss": {"tenant": "a", "role": "admin"},
    "root": {"role": "admin"},
}


class Place:
    """A gateway with keys of several users, and its key file."""

    def __init__(self, address: str, file: Path, keys: dict[str, str]) -> None:
        self.file, self.keys = file, keys
        self._address = f"{address}/api/v1/keys"

    async def ask(self, who: str, method: str, path: str = "", **body: Any) -> tuple[int, dict[str, Any]]:
        async with httpx2.AsyncClient(headers={"x-api-key": self.keys.get(who, who)}) as http:
            options: dict[str, Any] = {"json": body} if method == "POST" else {"params": body}
            answer = await http.request(method, self._address + path, **options)
            return answer.status_code, answer.json()

    async def seen(self, who: str) -> set[str]:
        return {each["name"] for each in (await self.ask(who, "GET"))[1]["keys"]}

    def id(self, who: str) -> str:
        [found] = [entry.id for entry in read_keys(self.file).keys if entry.hash == hash_key(self.keys[who])]
        return found


@asynccontextmanager
async def place(folder: Path, *, changes: bool = True) -> AsyncIterator[Place]:
    path, keys, entries = folder / "keys.yaml", {}, []
    for name, more in USERS.items():
        fields = {"user": name, "days": None, **more}
        keys[name], entry = make_key(name=name, now=datetime.now(UTC), **fields)
        entries.append(entry)
    path.write_bytes(KeyFile(keys=entries).dump())
    settings = Settings(auth=AuthSettings(keys_file=path, change_keys=changes))
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        yield Place(address, path, keys)


@pytest.mark.promise("tenants-apart", "owners-apart")
async def test_users_see_their_own_keys_and_administrators_those_of_their_tenant_or_of_all(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        anns = {"ann", "few", "reader", "core"}
        assert await here.seen("ann") == await here.seen("few") == await here.seen("reader") == anns
        assert await here.seen("carol") == {"carol"}
        assert await here.seen("boss") == {*anns, "bob", "boss"}
        assert await here.seen("root") == set(USERS)
        [own] = (await here.ask("carol", "GET"))[1]["keys"]
        assert own["last_used_at"]
        assert not [text for text in map(str, own.values()) if here.keys["carol"] in text or "sha256" in text]
        for who, other in (("ann", "bob"), ("bob", "ann"), ("boss", "carol"), ("carol", "root")):
            for method, path in (("DELETE", "/{}"), ("POST", "/{}/rotate")):
                theirs = await here.ask(who, method, path.format(here.id(other)))
                none = await here.ask(who, method, path.format("0" * 16))
                assert theirs[0] == 404
                assert str(theirs).replace(here.id(other), "ID") == str(none).replace("0" * 16, "ID")
        assert len(read_keys(here.file).keys) == len(USERS)
        assert (await here.ask("core", "GET"))[0] == 403
        for path in ("", f"/{here.id('ann')}/rotate"):
            assert (await here.ask("reader", "POST", path, name="more"))[0] == 403
        assert (await here.ask("reader", "DELETE", f"/{here.id('ann')}"))[0] == 403
        assert (await here.ask("few", "DELETE", f"/{here.id('ann')}"))[0] == 200  # with whichever is left
        here.file.write_text("no keys")
        answer = (await here.ask("root", "POST", name="more"))[1]
        assert (answer["message"], str(here.file) in str(answer)) == ("The server's keys can't be changed.", False)


@pytest.mark.promise("key-scopes")
async def test_no_key_is_made_with_more_rights_than_it_is_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path) as here:
        more: list[dict[str, Any]] = [{"tools": ["all"]}, {"tools": ["core", "files"]}, {"templates": ["large"]}]
        more += [{"role": "admin"}, {"days": 10}]
        for scopes in more:
            status, answer = await here.ask("few", "POST", name="more", **scopes)
            assert (status, answer["error"]) == (403, "forbidden"), scopes
        assert (await here.ask("few", "POST", f"/{here.id('ann')}/rotate"))[0] == 403
        for who, whose in (("ann", {"user": "bob"}), ("ann", {"tenant": "b"}), ("boss", {"tenant": "b"})):
            assert (await here.ask(who, "POST", name="more", **whose))[0] == 403
        wrongs: list[dict[str, Any]] = [{}, {"name": ""}, {"name": "x", "tools": ["no"]}, {"name": "ann"}]
        for wrong in (*wrongs, {"name": "x", "days": 0}):
            assert (await here.ask("ann", "POST", **wrong))[0] == 400
        assert len(read_keys(here.file).keys) == len(USERS)

        status, made = await here.ask("few", "POST", name="less")
        [entry] = [each for each in read_keys(here.file).keys if each.name == "less"]
        limits = next(each for each in read_keys(here.file).keys if each.name == "few")
        assert (status, entry.id) == (201, made["key_id"])
        assert (entry.tools, entry.templates, entry.expires) == (["account", "core"], ["small"], limits.expires)
        for who, whose in (("boss", {"user": "bob"}), ("root", {"user": "dora", "tenant": "c", "role": "admin"})):
            assert (await here.ask(who, "POST", name="more", **whose))[0] == 201
        monkeypatch.setattr(key_management, "MAX_PER_USER", 5)
        assert (await here.ask("ann", "POST", name="one too many"))[1]["error"] == "quota_exceeded"


async def test_a_key_works_at_once_is_rotated_and_ends_when_it_is_revoked(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        _, made = await here.ask("ann", "POST", name="new", days=5)
        assert await here.seen(made["key"]) == {"ann", "few", "reader", "core", "new"}
        assert made["key"] not in here.file.read_text()
        status, turned = await here.ask("ann", "POST", f"/{made['key_id']}/rotate", grace=0)
        assert (status, turned["name"], turned["expires_at"]) == (201, "new", made["expires_at"])
        assert (await here.ask(made["key"], "GET"))[0] == 401
        assert await here.seen(turned["key"])
        assert await here.ask("ann", "DELETE", f"/{turned['key_id']}") == (
            200,
            {"key_id": turned["key_id"], "revoked": True},
        )
        assert (await here.ask(turned["key"], "GET"))[0] == 401
        assert (await here.ask("few", "POST", f"/{here.id('few')}/rotate"))[1]["tools"] == ["core", "account"]


@pytest.mark.promise("key-scopes")
@pytest.mark.parametrize("days", [None, 30])
async def test_key_of_a_user_who_signed_in_ends_with_the_token_unless_the_settings_say_how_long_it_may_last(
    tmp_path: Path, days: int | None
) -> None:
    async with provided() as issuer:
        oidc = OidcSettings(issuer=issuer.address, audience=AUDIENCE)
        auth = AuthSettings(keys_file=tmp_path / "keys.yaml", change_keys=True, oidc=oidc, token_key_days=days)
        settings = Settings(auth=auth, links=LinkSettings(public_url="http://127.0.0.1:1"))
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        token = issuer.token(sub="ann", exp=int(end.timestamp()))
        async with (
            listening(Gateway(settings, FakeBackend()), settings) as address,
            httpx2.AsyncClient(base_url=f"{address}/api/v1", headers={"authorization": f"Bearer {token}"}) as http,
        ):
            made = (await http.post("/keys", json={"name": "own"})).json()
            ends = datetime.fromisoformat(made["expires_at"])
            assert made["user"] == "ann"
            assert (ends - end < timedelta(minutes=2)) == (days is None)
            for asked, taken in ((30, days is not None), (31, False)):
                answer = await http.post("/keys", json={"name": f"for {asked}", "days": asked})
                assert answer.status_code == (201 if taken else 403)


async def test_what_callers_may_not_change_is_only_shown(tmp_path: Path) -> None:
    async with place(tmp_path, changes=False) as here:
        assert await here.seen("carol") == {"carol"}
        for method, path in (("POST", ""), ("POST", f"/{here.id('carol')}/rotate"), ("DELETE", f"/{here.id('carol')}")):
            status, answer = await here.ask("carol", method, path, **({} if path else {"name": "x"}))
            assert (status, "auth.change_keys" in answer["next"]) == (403, True)
    settings = Settings()
    async with listening(Gateway(settings, FakeBackend()), settings) as address:
        status, answer = await Place(address, tmp_path, {}).ask("anybody", "GET")
        assert (status, answer["error"]) == (404, "not_found")
