"""Which network addresses pip and npm may connect to, whatever an index, a registry or a package names. Pure.

The check itself is made by the processes of pip and npm, after a name was resolved.
"""

from ipaddress import IPv4Network, IPv6Network
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

_PORTS: Final = {"http": 80, "https": 443}

# Loopback, link-local, multicast, reserved, and what clouds serve instance metadata at: Alibaba, Azure, Oracle; IPv6 of
# AWS and Google.
_V4: Final = (
    *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
    *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
)
_V6: Final = ("::/127", "fe80::/10", "ff00::/8", "fd00:ec2::254/128", "fd20:ce::254/128")
# IPv4 addresses written as IPv6: mapped, and by way of NAT64 (RFC 6052).
_EMBEDDED: Final = ("::ffff:0:0", "64:ff9b::")


def guard(url: str) -> dict[str, list[str]]:
    """Return what a process needs for the check.

    Args:
        url: The configured index or registry, which may be anywhere.

    Returns:
        `refused`: networks; `trusted`: names and ports that are exempt: the index, and the proxies of the environment,
        which resolve the names themselves.
    """
    proxies = [value if "://" in value else f"http://{value}" for value in getproxies_environment().values() if value]
    return {"refused": [*_V4, *_V6, *_embedded()], "trusted": sorted(filter(None, map(_place, (url, *proxies))))}


def _embedded() -> list[str]:
    prefixes = [int(IPv6Network(prefix).network_address) for prefix in _EMBEDDED]
    networks = [IPv4Network(each) for each in _V4]
    return [
        str(IPv6Network((prefix + int(network.network_address), 96 + network.prefixlen)))
        for prefix in prefixes
        for network in networks
    ]


def _place(url: str) -> str | None:
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme)
    return f"{parts.hostname}:{port}" if parts.hostname and port else None
