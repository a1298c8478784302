"""What the runner of a sandbox has to try in vain before the sandbox is handed out."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpod_api.types import NetworkProfile
from sandpod_operator.manifests.security import opened_by, opens, probes
from support.operator.world import a_template, settings

EXAMPLE = Path(__file__).resolve().parents[4] / "manifests/examples/template-egress.yaml"
CLOSED = NetworkProfile(name="none")
METADATA = [
    "169.254.169.254:80",
    "[fd00:ec2::254]:80",
    "[fd20:ce::254]:80",
    "169.254.169.252:988",
    "169.254.170.2:80",
    "169.254.170.23:80",
    "[fd00:ec2::23]:80",
    "168.63.129.16:80",
    "100.100.100.200:80",
    "169.254.0.23:80",
    "169.254.42.42:80",
    "[fd00:42::42]:80",
    "192.0.0.192:80",
]
NODE_AND_METADATA = ["$(NODE_IP):10250", *METADATA]
PEER = "10.244.0.9:8081"


def web(*egress: dict[str, Any], dns: bool = False) -> NetworkProfile:
    return NetworkProfile.model_validate({"name": "web", "dns": dns, "egress": list(egress)})


def test_api_server_node_metadata_another_pod_and_dns_are_tried() -> None:
    found = probes(a_template(), CLOSED, settings(api_server="10.96.0.1:443", peer=PEER))
    assert found == ["10.96.0.1:443", *NODE_AND_METADATA, PEER, "10.96.0.10:53"]


def test_administrator_can_name_more_addresses() -> None:
    found = probes(a_template(), CLOSED, settings(api_server="", more_probes="10.1.1.1:80, 10.2.2.2:443,"))
    assert found == [*NODE_AND_METADATA, "10.96.0.10:53", "10.1.1.1:80", "10.2.2.2:443"]


def test_profile_opens_the_dns_that_it_asks_for_and_nothing_else() -> None:
    everything = web({"cidr": "0.0.0.0/0"}, {"cidr": "::/0"}, dns=True)
    assert probes(a_template(), everything, settings(api_server="10.96.0.1:443")) == [
        "10.96.0.1:443",
        *NODE_AND_METADATA,
    ]


def test_other_pod_is_not_tried_where_a_profile_of_the_template_opens_its_address() -> None:
    inside = {"name": "inside", "egress": [{"cidr": "10.0.0.0/8"}]}
    narrow = {"name": "narrow", "egress": [{"cidr": "10.0.0.0/8", "ports": [443]}]}
    for profiles, tried in (([], True), ([narrow], True), ([narrow, inside], False)):
        found = probes(a_template(networkProfiles=profiles), CLOSED, settings(peer=PEER))
        assert (PEER in found) is tried


@pytest.mark.parametrize(
    ("egress", "opened"),
    [
        ([], None),
        ([{"cidr": "192.0.2.0/24"}], None),
        ([{"cidr": "0.0.0.0/0", "ports": [8443]}], None),
        ([{"cidr": "0.0.0.0/0"}], "10.96.0.1:443"),
        ([{"cidr": "0.0.0.0/0", "exceptCidrs": ["10.0.0.0/8"]}], "169.254.169.254:80"),
        ([{"cidr": "::/0"}], "[fd00:ec2::254]:80"),
        ([{"cidr": "10.1.1.1/32"}], "10.1.1.1:80"),
    ],
)
def test_what_a_profile_opens_is_known_before_there_is_a_pod(egress: list[dict[str, Any]], opened: str | None) -> None:
    strict = settings(api_server="10.96.0.1:443", more_probes="10.1.1.1:80")
    assert opened_by(web(*egress), a_template(), strict) == opened
    assert opened_by(web(*egress), a_template(), settings(api_server="10.96.0.1:443", allow_open_network=True)) is None


def test_profile_of_the_examples_opens_none_of_them() -> None:
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for profile in example["spec"]["networkProfiles"]:
        assert opened_by(NetworkProfile.model_validate(profile), a_template(), settings()) is None


@pytest.mark.parametrize("address", METADATA)
def test_profile_that_opens_one_clouds_metadata_is_told_of(address: str) -> None:
    host = address.rpartition(":")[0].strip("[]")
    profile = web({"cidr": f"{host}/{128 if ':' in host else 32}"})
    assert opened_by(profile, a_template(), settings()) == address


@pytest.mark.parametrize(
    ("rule", "address", "is_open"),
    [
        ({"cidr": "192.0.2.0/24"}, "192.0.2.9:80", True),
        ({"cidr": "192.0.2.0/24"}, "192.0.3.9:80", False),
        ({"cidr": "192.0.2.0/24", "ports": [443]}, "192.0.2.9:80", False),
        ({"cidr": "192.0.2.0/24", "ports": [443, 80]}, "192.0.2.9:80", True),
        ({"cidr": "192.0.2.0/24", "exceptCidrs": ["192.0.2.8/30"]}, "192.0.2.9:80", False),
        ({"cidr": "192.0.2.1/24"}, "192.0.2.9:80", True),
        ({"cidr": "2001:db8::/32"}, "[2001:db8::1]:6443", True),
        ({"cidr": "2001:db8::/32"}, "192.0.2.9:80", False),
        ({"cidr": "0.0.0.0/0"}, "api.example.com:443", False),
        ({"cidr": "everything"}, "192.0.2.9:80", False),
    ],
)
def test_rule_opens_what_is_in_its_range_and_ports(rule: dict[str, Any], address: str, *, is_open: bool) -> None:
    assert opens(NetworkProfile.model_validate({"name": "x", "egress": [rule]}), address) is is_open
