"""What counts as reached, and what as kept out."""

import errno
import socket
from types import SimpleNamespace

import pytest

from sandpod_runner.limits import network
from support.servers.silence import silent


def test_address_that_takes_connections_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        assert network.find_open(((host, port),)) == f"{host}:{port}"


def test_host_that_answers_that_nothing_listens_is_reached_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    assert network.find_open(((host, port),)) == f"{host}:{port}"


def test_silence_is_not_reached_and_does_not_hide_what_is() -> None:
    with silent() as listener:
        quiet = listener.getsockname()
        assert network.find_open((quiet, quiet), seconds=0.2) is None
        with socket.create_server(("127.0.0.1", 0)) as other:
            host, port = other.getsockname()
            assert network.find_open((quiet, (host, port)), seconds=5.0) == f"{host}:{port}"


async def test_address_that_is_closed_a_moment_later_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["10.0.0.1:443", "10.0.0.1:443", None])
    monkeypatch.setattr(network, "find_open", lambda _: next(answers))
    monkeypatch.setattr(network, "PAUSE", 0)
    assert await network.find_lasting_open((("10.0.0.1", 443),)) is None


async def test_look_that_took_long_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["10.0.0.1:443", None]
    now = 0.0

    def look(_: object) -> str | None:
        nonlocal now
        now += 2 * network.PATIENCE
        return answers.pop(0)

    monkeypatch.setattr(network, "find_open", look)
    monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(network, "PAUSE", 0)
    assert await network.find_lasting_open((("10.0.0.1", 443),)) is None


async def test_address_that_stays_open_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PAUSE", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        assert await network.find_lasting_open(((host, port),), patience=0.01) == f"{host}:{port}"


async def test_later_looks_report_what_opens_and_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, "10.0.0.1:443", None, *["10.0.0.1:443"] * 1000])
    monkeypatch.setattr(network, "find_open", lambda _: next(answers))
    monkeypatch.setattr(network, "PAUSE", 0)
    assert await network.wait_for_open((("10.0.0.1", 443),), 0.01) == "10.0.0.1:443"
    assert next(answers) == "10.0.0.1:443"


def test_what_has_answered_is_reached_though_the_time_was_up_before_anybody_looked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        assert network.find_open(((host, port),), seconds=0) == f"{host}:{port}"


def test_no_addresses_are_all_kept_out() -> None:
    assert network.find_open(()) is None


@pytest.mark.parametrize("code", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES])
def test_network_that_refuses_to_carry_it_is_not_reached(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: code)
    assert network.find_open((("127.0.0.1", 1),), seconds=0.2) is None


def test_name_that_can_not_be_resolved_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert network.find_open((("name.example", 1),), seconds=0.2) is None
