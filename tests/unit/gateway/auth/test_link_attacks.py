"""Links that nobody made: forged with what an attacker can know, against a server with keys and one without."""

import base64
import hashlib
import hmac
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth import links as links_module
from sandpod_gateway.auth.api_keys import KeyEntry, key_id, make_key
from sandpod_gateway.auth.callers import LOCAL, LOCAL_KEY_ID, Caller
from sandpod_gateway.auth.key_file import read_keys
from sandpod_gateway.auth.links import LinkKey, Method
from sandpod_gateway.http import attempts
from sandpod_gateway.settings import AuthSettings, Settings
from support.gateway.peers import ENVELOPE, HEADERS

END = 2**32 - 1
PATH = "out/secret.txt"


@dataclass
class Victim:
    """A server, and a caller with a file in a sandbox."""

    http: httpx2.AsyncClient
    gateway: Gateway
    path: Path
    key: str
    entries: list[KeyEntry]
    sandbox: str = ""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = HEADERS | {"mcp-name": tool, "authorization": f"Bearer {self.key}"}
        answer = await self.http.post("/mcp", json=body, headers=headers)
        text = answer.text.partition("data: ")[2] or answer.text
        content: dict[str, Any] = json.loads(text)["result"]["structuredContent"]
        return content

    async def try_all(self, tokens: dict[Method, str]) -> list[int]:
        file, archive = f"/files/{self.sandbox}/{PATH}", f"/archives/{self.sandbox}.tar.gz"
        answers = [
            await self.http.get(file, params={"token": tokens["get"]}),
            await self.http.head(file, params={"token": tokens["get"]}),
            await self.http.put(file, params={"token": tokens["put"]}, content=b"forged"),
            await self.http.get(archive, params={"token": tokens["archive"]}),
        ]
        assert (await self.call("read_file", path=PATH))["content"] == "mine"
        return [answer.status_code for answer in answers]


@asynccontextmanager
async def attacked(folder: Path, *users: str) -> AsyncIterator[Victim]:
    """Serve with a key for each user, the first of whom has the file; without users, without keys."""
    path = folder / "keys.yaml"
    made = [make_key(user=user, name="k", days=None, now=datetime.now(UTC)) for user in users]
    entries = [entry for _, entry in made]
    write_keys(path, *entries)
    auth = AuthSettings(keys_file=path if users else None)
    gateway = Gateway(Settings(auth=auth), FakeBackend())
    app = gateway.http_app()
    async with (
        gateway.running(),
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:8000") as http,
    ):
        victim = Victim(http, gateway, path, made[0][0] if made else "none", entries)
        victim.sandbox = (await victim.call("write_file", path=PATH, text="mine"))["sandbox"]
        yield victim


def write_keys(path: Path, *entries: KeyEntry) -> None:
    path.write_text(yaml.safe_dump({"keys": [entry.model_dump(mode="json") for entry in entries]}))


def known(victim: Victim) -> Iterator[bytes]:
    """Yield all that an attacker may sign with: nothing, constants, the key file's hashes, a key of the server."""
    hashes = sorted(entry.hash for entry in victim.entries)
    yield from (b"", b"\0", bytes(32), b"secret", hashlib.sha256(b"sandpod links").digest())
    yield hashlib.sha256("\n".join(["sandpod links", *hashes]).encode()).digest()
    yield victim.key.encode()
    for stored in hashes:
        yield from (stored.encode(), bytes.fromhex(stored.removeprefix("sha256:")))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def json_web_token(algorithm: str, secret: bytes, method: Method, sandbox: str, path: str) -> str:
    """Return a link's token in the form of RFC 7519."""
    claims = {"method": method, "sandbox": sandbox, "path": path, "exp": END}
    signed = ".".join(_base64url(json.dumps(part).encode()) for part in ({"alg": algorithm, "typ": "JWT"}, claims))
    hashes = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}
    code = hmac.digest(secret, signed.encode(), hashes[algorithm]) if algorithm in hashes else b""
    return f"{signed}.{_base64url(code)}"


WHAT: dict[Method, str] = {"get": PATH, "put": PATH, "archive": "tar.gz"}


def signed(key: LinkKey, maker: Caller, sandbox: str) -> dict[Method, str]:
    """Return tokens of the server's own form."""
    return {method: links_module._sign(key, END, maker, (method, sandbox, path)) for method, path in WHAT.items()}


@pytest.fixture(autouse=True)
def _as_fast_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no refusal wait: these are many."""
    monkeypatch.setattr(attempts, "FREE", 10_000)


# The servers that are attacked: one with a caller's key, one without keys.
EACH = pytest.mark.parametrize("users", [("alice",), ()], ids=["with keys", "without keys"])


@EACH
async def test_links_of_the_server_itself_open_what_the_forged_ones_do_not(
    tmp_path: Path, users: tuple[str, ...]
) -> None:
    async with attacked(tmp_path, *users) as victim:
        get = (await victim.call("create_link", path=PATH))["url"]
        put = (await victim.call("create_link", path=PATH, method="put"))["url"]
        archive = (await victim.call("fetch_workspace"))["url"]
        # Without keys they are for this machine alone, whatever name or proxy leads here.
        elsewhere = {"host": "sandpod.example.com"}
        answers = [
            await victim.http.get(get, headers=elsewhere),
            await victim.http.get(archive, headers=elsewhere),
            await victim.http.put(put, content=b"mine", headers=elsewhere),
        ]
        assert [answer.status_code for answer in answers] == ([200, 200, 201] if users else [421] * 3)
        assert (await victim.http.get(get)).text == "mine"
        assert (await victim.http.put(put, content=b"new")).status_code == 201
        assert (await victim.http.get(archive)).status_code == 200


@EACH
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", "none", "RS256"])
async def test_json_web_token_signed_with_what_is_known_opens_nothing(
    tmp_path: Path, users: tuple[str, ...], algorithm: str
) -> None:
    async with attacked(tmp_path, *users) as victim:
        for secret in known(victim):
            forged = {m: json_web_token(algorithm, secret, m, victim.sandbox, path) for m, path in WHAT.items()}
            assert await victim.try_all(forged) == [403] * 4


@pytest.mark.promise("links")
@EACH
async def test_token_of_todays_form_signed_with_what_is_known_opens_nothing(
    tmp_path: Path, users: tuple[str, ...]
) -> None:
    async with attacked(tmp_path, *users) as victim:
        makers = [LOCAL, Caller("user:alice", LOCAL_KEY_ID)]
        makers += [Caller("user:alice", key_id(entry.hash)) for entry in victim.entries]
        ids = (victim.gateway._links.signing().id, "00000000")
        for secret, name, maker in itertools.product(known(victim), ids, makers):
            key = LinkKey.model_construct(id=name, secret=secret.hex(), created=0)
            assert await victim.try_all(signed(key, maker, victim.sandbox)) == [403] * 4


async def test_link_made_by_one_caller_to_anothers_sandbox_opens_nothing(tmp_path: Path) -> None:
    """Also with the true secret: the sandbox's owner is compared with the maker."""
    async with attacked(tmp_path, "alice", "bob") as victim:
        alice, bob = (Caller(f"user:{entry.user}", key_id(entry.hash)) for entry in victim.entries)
        key = victim.gateway._links.signing()
        assert await victim.try_all(signed(key, bob, victim.sandbox)) == [404] * 4
        assert await victim.try_all(signed(key, Caller("user:alice", bob.key_id), victim.sandbox)) == [403] * 4
        own = signed(key, alice, victim.sandbox)["get"]
        assert (await victim.http.get(f"/files/{victim.sandbox}/{PATH}", params={"token": own})).text == "mine"


@pytest.mark.claim("create_link")
async def test_link_ends_with_its_makers_key_and_not_with_another_key_that_comes_or_goes(tmp_path: Path) -> None:
    async with attacked(tmp_path, "alice", "bob", "alice") as victim:
        first, bob, other = victim.entries
        url = (await victim.call("create_link", path=PATH))["url"]
        verifier = victim.gateway._keys
        assert verifier is not None
        for entries, status in (
            ([first], 200),
            ([first, bob, other], 200),
            ([bob, other], 403),  # the same user still has a key, but not the one that made the link
            ([bob, first], 200),
            ([], 403),
        ):
            write_keys(victim.path, *entries)
            verifier.use(read_keys(victim.path))
            assert (await victim.http.get(url)).status_code == status


async def test_server_with_keys_takes_no_link_of_a_caller_without_one(tmp_path: Path) -> None:
    async with attacked(tmp_path, "alice") as victim:
        forged = signed(victim.gateway._links.signing(), LOCAL, victim.sandbox)
        assert await victim.try_all(forged) == [403] * 4
