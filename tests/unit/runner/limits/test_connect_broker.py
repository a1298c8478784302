"""How the runner reads the address that a program wants to connect to."""

import socket
import struct

import pytest

from sandpod_runner.limits.network import is_own, read_endpoint


def v4(host: str, port: int) -> bytes:
    return struct.pack("=HH", socket.AF_INET, socket.htons(port)) + socket.inet_pton(socket.AF_INET, host) + bytes(8)


def v6(host: str, port: int) -> bytes:
    name = socket.inet_pton(socket.AF_INET6, host)
    return struct.pack("=HHI", socket.AF_INET6, socket.htons(port), 0) + name + bytes(4)


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        (v4("203.0.113.1", 443), ("203.0.113.1", 443)),
        (v4("203.0.113.1", 443)[:8], ("203.0.113.1", 443)),
        (v6("2001:db8::1", 80), ("2001:db8::1", 80)),
        (v6("::ffff:203.0.113.1", 80)[:24], ("::ffff:203.0.113.1", 80)),
        (v4("203.0.113.1", 443)[:7], None),
        (v6("2001:db8::1", 80)[:23], None),
        (struct.pack("=H", socket.AF_UNIX) + b"/tmp/socket", None),
        (struct.pack("=H", socket.AF_UNSPEC) + bytes(14), None),
        (b"\x02", None),
        (b"", None),
    ],
)
def test_address_of_the_internet_is_read_and_others_are_none(address: bytes, endpoint: tuple[str, int] | None) -> None:
    assert read_endpoint(address) == endpoint


def test_own_addresses_are_known_by_the_system() -> None:
    assert all(is_own(host) for host in ("127.0.0.1", "127.3.2.1", "0.0.0.0"))
    assert not any(is_own(host) for host in ("203.0.113.1", "2001:db8::1"))
