"""Addresses that no sandbox may reach, in groups: each is tried by TCP, UDP or an echo request."""

from typing import Final

from sandpod_api.metadata_addresses import METADATA
from sandpod_gateway.verify.model import Facts

Groups = dict[str, dict[str, list[str]]]
"""Places by group and by way: tcp and udp as host:port, ping as an address."""

ELSEWHERE: Final[Groups] = {
    "internet": {"tcp": ["1.1.1.1:443", "8.8.8.8:53"], "udp": ["1.1.1.1:53"]},
    "ipv6": {"tcp": ["[2606:4700:4700::1111]:443", "[2001:4860:4860::8888]:53"], "ping": ["2606:4700:4700::1111"]},
    "metadata": {"tcp": list(METADATA)},
}
"""Places that are the same from everywhere."""


def wanted(groups: Groups) -> dict[str, list[str]]:
    """Return all places by way, as the program takes them."""
    found: dict[str, list[str]] = {"tcp": [], "udp": [], "ping": []}
    for ways in groups.values():
        for way, listed in ways.items():
            found[way] += listed
    return found


def by_group(groups: Groups, seen: dict[str, Facts]) -> Facts:
    """Return what was seen of each group's places, by who tried."""
    return {
        "groups": {
            group: {
                who: {f"{way} {place}": facts[way][place] for way, listed in ways.items() for place in listed}
                for who, facts in seen.items()
            }
            for group, ways in groups.items()
            if any(ways.values())
        },
        "raw": {who: facts["raw"] for who, facts in seen.items()},
        "name": {who: facts["name"] for who, facts in seen.items()},
    }
