"""What counts as reached, and what as kept out."""

import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest

from sandpod_runner import probe


@contextlib.contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """Give an address that answers nothing: a listener whose queue is full drops what comes, as a policy does."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.1)
            try:
                waiting.connect(address)
            except TimeoutError:
                break
        yield address


def test_address_that_takes_connections_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        assert probe.find_open(((host, port),)) == f"{host}:{port}"


def test_host_that_answers_that_nothing_listens_is_reached_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    assert probe.find_open(((host, port),)) == f"{host}:{port}"


def test_silence_is_not_reached_and_does_not_hide_what_is() -> None:
    with silent() as quiet:
        assert probe.find_open((quiet, quiet), seconds=0.2) is None
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            assert probe.find_open((quiet, (host, port)), seconds=5.0) == f"{host}:{port}"


def test_address_that_is_closed_a_moment_later_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["10.0.0.1:443", "10.0.0.1:443", None])
    monkeypatch.setattr(probe, "find_open", lambda _: next(answers))
    assert probe.find_lasting_open((("10.0.0.1", 443),), pause=0) is None


def test_address_that_stays_open_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        assert probe.find_lasting_open(((host, port),), patience=0.01, pause=0) == f"{host}:{port}"


def test_no_addresses_are_all_kept_out() -> None:
    assert probe.find_open(()) is None


@pytest.mark.parametrize("code", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES])
def test_network_that_refuses_to_carry_it_is_not_reached(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: code)
    assert probe.find_open((("127.0.0.1", 1),), seconds=0.2) is None


def test_name_that_can_not_be_resolved_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert probe.find_open((("name.example", 1),), seconds=0.2) is None
