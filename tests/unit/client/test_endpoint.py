"""Which server the client uses, and where its key is kept."""

import json
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from sandpod import InvalidArgumentError, UnauthorizedError, UnreachableError, device_flow, endpoint, keys, local_server
from sandpod.endpoint import Endpoint, find, write_profile


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SANDPOD_URL", "SANDPOD_KEY", "SANDPOD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(local_server, "address", lambda: ("http://local", "own"))
    monkeypatch.setitem(sys.modules, "keyring", None)
    monkeypatch.setenv("SANDPOD_PROFILES", str(tmp_path / "new/profiles.json"))
    return tmp_path / "new/profiles.json"


def test_the_first_that_is_said_is_used(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find() == Endpoint("http://local", "own")
    write_profile("team", {"url": "https://team.example/mcp", "key": "k"}, default=True)
    write_profile("other", {"url": "https://other.example"}, default=False)
    assert stat.S_IMODE(profiles.stat().st_mode) == 0o600
    assert find() == Endpoint("https://team.example", "k")
    assert "k" not in repr(find())
    assert find(profile="other") == Endpoint("https://other.example")
    assert find(profile="local") == Endpoint("http://local", "own")
    monkeypatch.setenv("SANDPOD_URL", "https://environment.example/api/v1/")
    monkeypatch.setenv("SANDPOD_KEY", " e\n")
    assert find() == Endpoint("https://environment.example", "e")
    assert find("http://said:8000", "s") == Endpoint("http://said:8000", "s")
    assert find(profile="team") == Endpoint("https://team.example", "k")
    with pytest.raises(InvalidArgumentError, match=r"'no'\. Profiles are: team, other, local\."):
        find(profile="no")


@pytest.mark.parametrize(
    "url", ["", "team.example", "ftp://a", "http://", "http://a:0", "http://a?x=1", "http://ä", "http://a\nb"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        endpoint.server_url(url)


@pytest.mark.parametrize("text", ["{", "[]", '{"profiles": 1}', '{"profiles": {"a": 1}}'])
def test_a_profile_file_that_is_none_is_named(profiles: Path, text: str) -> None:
    profiles.parent.mkdir()
    profiles.write_text(text)
    with pytest.raises(InvalidArgumentError, match="profile file"):
        find()


def test_a_key_with_what_no_key_has_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="key"):
        find("http://a", "two words")


def test_without_a_server_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(local_server, "is_installed", lambda: False)
    with pytest.raises(UnreachableError, match="SANDPOD_URL"):
        local_server.address()


def test_a_key_is_in_the_keyring_where_there_is_one(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[str, str], str] = {}
    ring = SimpleNamespace(
        set_password=lambda service, name, key: kept.update({(service, name): key}),
        get_password=lambda service, name: kept[service, name],
    )
    monkeypatch.setitem(sys.modules, "keyring", ring)
    write_profile("team", {"url": "https://team.example", **keys.store_key("team", "k")}, default=True)
    assert find() == Endpoint("https://team.example", "k")
    assert '"k"' not in profiles.read_text()
    kept.clear()  # which raises as a locked one does
    assert find().key is None


class Provider:
    """A provider of tokens, and the server that names it."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.forms: list[dict[str, str]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/.well-known/oauth-protected-resource/mcp":
            about = {"authorization_servers": ["https://provider.example/"], "resource": "https://team.example/mcp"}
            return httpx2.Response(200, json={**about, "scopes_supported": ["openid", "tools"]})
        if request.url.path == "/.well-known/openid-configuration":
            paths = {"device_authorization_endpoint": "device", "token_endpoint": "token"}
            return httpx2.Response(200, json={name: f"https://provider.example/{path}" for name, path in paths.items()})
        self.forms.append(dict(httpx2.QueryParams(request.content.decode()).items()))
        return httpx2.Response(200, json=self.answers.pop(0))


def connected(provider: Provider) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.MockTransport(provider))


def test_a_user_signs_in_and_tokens_are_renewed_when_they_end(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Provider()
    http = connected(at)
    provider = device_flow.find_provider(http, "https://team.example", "cli")
    assert provider is not None
    assert (provider.scope, provider.resource) == ("openid tools", "https://team.example/mcp")
    begun = {"device_code": "d", "user_code": "AB-CD", "verification_uri": "https://provider.example/go", "interval": 1}
    at.answers = [
        begun,
        {"error": "authorization_pending"},
        {"error": "slow_down"},
        {"access_token": "one", "expires_in": 10, "refresh_token": "r"},
    ]
    told: list[tuple[str, str]] = []
    waited: list[float] = []
    tokens = device_flow.sign_in(http, provider, lambda *what: told.append(what), wait=waited.append)
    assert (tokens.access, told, waited) == ("one", [("https://provider.example/go", "AB-CD")], [1, 1, 6])
    assert at.forms[0] == {"client_id": "cli", "scope": "openid tools", "resource": "https://team.example/mcp"}
    assert at.forms[1]["device_code"] == "d"

    monkeypatch.setattr(endpoint, "httpx2", SimpleNamespace(Client=lambda **_: connected(at)))
    entry = {"url": "https://team.example", "token_endpoint": provider.token_endpoint, "client_id": "cli"}
    write_profile("team", {**entry, **keys.store_key("team", tokens.text())}, default=True)
    at.answers = [{"access_token": "two", "expires_in": 900}]
    assert [find().key, find().key] == ["two", "two"]  # the second needs no renewal
    assert at.forms[-1] == {"grant_type": "refresh_token", "refresh_token": "r", "client_id": "cli"}
    assert json.loads(json.loads(profiles.read_text())["profiles"]["team"]["key"])["refresh"] == "r"
    at.answers = [begun, {"error": "access_denied", "error_description": "no"}]
    with pytest.raises(UnauthorizedError, match=r"\(no\)"):
        device_flow.sign_in(http, provider, lambda *_: None, wait=waited.append)
    at.answers = [{**begun, "expires_in": 3}, *[{"error": "authorization_pending"}] * 3]
    with pytest.raises(UnauthorizedError, match="in time"):
        device_flow.sign_in(http, provider, lambda *_: None, wait=waited.append)
    ended = device_flow.Tokens("a", None, time.time()).text()
    with pytest.raises(UnauthorizedError, match="has ended"):
        device_flow.renewed(http, ended, entry)
