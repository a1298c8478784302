"""The lines that a server prints when it has started: what they tell people to type can be typed."""

import asyncio
import contextlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.cli import serve
from sandpod_gateway.settings import AuthSettings, LinkSettings, Settings


@pytest.mark.parametrize("path", ["/usr/bin:/bin", str(Path(sys.executable).parent)])
def test_program_to_try_is_found_as_it_is_printed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    line = next(line for line in serve._banner(Settings()).splitlines() if "Try it:" in line)
    program, *arguments = shlex.split(line.partition(":")[2])
    assert shutil.which(program) == str(Path(sys.executable).with_name("fastmcp"))
    assert arguments[:3] == ["call", "http://127.0.0.1:8000/mcp", "run_python_code"]


def test_server_that_asks_nobody_for_a_key_says_who_can_use_it() -> None:
    assert "every program on this machine can connect, and nothing else.\n" in serve._banner(Settings())
    banner = serve._banner(Settings(host="0.0.0.0", auth=AuthSettings(allow_anonymous=True)))
    assert "No key is needed: whoever reaches this server is the same user of it" in banner
    assert "every program on this machine" not in banner


@pytest.mark.parametrize(("chosen", "levels"), [(True, ["WARNING"]), (False, [])])
async def test_server_that_lets_anybody_in_warns_of_it_as_it_starts(
    chosen: Any, levels: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()
    monkeypatch.setattr("uvicorn.Server.capture_signals", lambda _: contextlib.nullcontext())
    monkeypatch.setattr("uvicorn.Server.startup", lambda *_, **__: _starting(started))
    settings = Settings(port=0, backend="kubernetes", auth=AuthSettings(allow_anonymous=chosen))
    serving = asyncio.create_task(serve._serve_http(Gateway(settings, FakeBackend()), settings))
    await asyncio.wait_for(started.wait(), 60)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert [record.levelname for record in caplog.records if "allow_anonymous is set" in record.message] == levels


async def _starting(started: asyncio.Event) -> None:
    started.set()
    await asyncio.get_running_loop().create_future()


def test_callers_are_told_where_to_sign_in_and_how_to_send_a_key() -> None:
    oidc = OidcSettings(issuer="https://login.example.com")
    banner = serve._banner(Settings(auth=AuthSettings(oidc=oidc), links=LinkSettings(public_url="https://a.example")))
    assert "  Callers sign in at https://login.example.com, or send an API key as `Authorization: Bearer KEY`" in banner
    with_keys = serve._banner(Settings(auth=AuthSettings(keys_file=Path("keys.yaml"))))
    assert "  Callers need an API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`.\n" in with_keys
