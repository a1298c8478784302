"""The lines that a server prints when it has started: what they tell people to type can be typed."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

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


def test_callers_are_told_where_to_sign_in_and_how_to_send_a_key() -> None:
    oidc = OidcSettings(issuer="https://login.example.com")
    banner = serve._banner(Settings(auth=AuthSettings(oidc=oidc), links=LinkSettings(public_url="https://a.example")))
    assert "  Callers sign in at https://login.example.com, or send an API key as `Authorization: Bearer KEY`" in banner
    with_keys = serve._banner(Settings(auth=AuthSettings(keys_file=Path("keys.yaml"))))
    assert "  Callers need an API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`.\n" in with_keys
