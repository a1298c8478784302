from pathlib import Path

import pytest
from mcp.server.streamable_http_manager import DEFAULT_MAX_SESSIONS

from sandpod_gateway.errors import StartError
from sandpod_gateway.settings import MAX_SESSIONS, AuthSettings, Settings, load


def settings(*flags: str, config: Path | None = None) -> Settings:
    return load(list(flags), config=config, program="sandpod serve")


def test_most_sessions_are_those_that_the_sdk_holds() -> None:
    assert MAX_SESSIONS == DEFAULT_MAX_SESSIONS


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("port: 1001\nlog_level: warning\nlimits: {run_timeout: 7, code_bytes: 4096}\n")
    monkeypatch.setenv("SANDPOD_PORT", "1002")
    monkeypatch.setenv("SANDPOD_LIMITS__RUN_TIMEOUT", "8")
    result = settings("--port", "1003", config=config)
    assert (result.port, result.limits.run_timeout, result.limits.code_bytes) == (1003, 8, 4096)
    assert result.log_level == "warning"
    assert result.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot: 1\n", "prot"),
        ("port: nine\n", "port"),
        ("limits: {code_bytes: 1}\n", "code_bytes"),
        ("tls: {cert: a}\n", "tls: tls.cert and tls.key go together."),
        ("auth: {oidc: {issuer: a}}\n", "auth.oidc.issuer: the address begins with https://."),
        ("port: [\n", "line 2"),
        ("just words\n", "Settings are wrong"),
        ("7\n", "Settings are wrong"),
        ("host: \x01\n", "#x0001"),
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(tmp_path: Path, text: str, word: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(StartError, match=word) as raised:
        settings(config=config)
    assert "\n" not in raised.value.message


def test_value_that_should_be_json_and_is_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match="allowed_hosts"):
        settings("--allowed-hosts", "[")
    monkeypatch.setenv("SANDPOD_LIMITS", "{")
    with pytest.raises(StartError, match="limits"):
        settings()


def test_a_missing_settings_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no settings file"):
        settings(config=tmp_path / "none.yaml")


def test_isolation_can_be_given_up_by_one_flag_only() -> None:
    assert not settings().local.unsafe_no_isolation
    assert settings("--unsafe-no-isolation").local.unsafe_no_isolation


def test_another_systems_flags_and_variables_are_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_IMAGE", "own/image:1")
    monkeypatch.setenv("PASSTHROUGH_ENV", "A, B")
    compat = settings("--js-image=js:1").compat
    assert (compat.pass_through_env, compat.place("python"), compat.place("javascript")) == (
        ["A", "B"],
        ("python", "own/image:1"),
        ("javascript", "js:1"),
    )
    monkeypatch.setenv("CONTAINER_LANGUAGE", "python")
    compat = settings("--pass-through-env", "C,D").compat
    assert (compat.pass_through_env, compat.place("python"), compat.place("javascript")) == (
        ["C", "D"],
        ("python", "own/image:1"),
        ("javascript", None),
    )
    monkeypatch.setenv("CONTAINER_LANGUAGE", "ruby")
    assert settings().compat.place("javascript") == ("ruby", "own/image:1")
    with pytest.raises(StartError, match="pass_through_env"):
        settings("--pass-through-env", "A=1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_without_keys_it_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(StartError, match="loopback"):
        Settings(host=host).require_keys_or_loopback()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_no_keys(host: str) -> None:
    Settings(host=host).require_keys_or_loopback()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1"])
def test_server_without_keys_listens_elsewhere_by_explicit_choice_alone(host: str) -> None:
    chosen = settings("--host", host, "--auth.allow-anonymous")
    chosen.require_keys_or_loopback()
    assert not Settings().auth.allow_anonymous
    both = chosen.model_copy(update={"auth": AuthSettings(allow_anonymous=True, keys_file=Path("keys.yaml"))})
    with pytest.raises(StartError, match="allow_anonymous is for a server without keys"):
        both.require_keys_or_loopback()
