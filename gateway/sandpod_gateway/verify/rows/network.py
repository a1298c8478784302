"""What code can reach over the network."""

from functools import partial
from typing import Any, Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, not_applicable, verdict

_REACHED: Final = ("open", "ECONNREFUSED", "done")
_LOOPBACK: Final = " 127.0.0.1:"
_BOUND: Final = (
    "Addresses that were known when it ran, from one node, for three seconds each. A refused connection counts as "
    "reached: a plugin that refuses instead of dropping can't be told from a host that answers."
)
_BESIDE: Final = "by the caller's code and, past the runner's own filter, by a process beside the runner"


def _judge(group: str, missing: str, facts: Facts) -> Verdict:
    """Judge one group of places: how each try ended, of the caller's code and of a process beside the runner."""
    found: dict[str, dict[str, str]] = facts["groups"].get(group, {})
    tries = {f"{place} {who}": answer for who, answers in found.items() for place, answer in answers.items()}
    if not tries:
        return not_applicable(missing)
    wrong = [f"{place} answered ({answer})" for place, answer in tries.items() if _reached(place, answer)]
    counts: dict[str, int] = {}
    for answer in tries.values():
        counts[answer] = counts.get(answer, 0) + 1
    return verdict(wrong, f"{len(tries)} tries: " + ", ".join(f"{count} {answer}" for answer, count in counts.items()))


def _reached(place: str, answer: str) -> bool:
    # A sandbox has a loopback interface of its own, which refuses what nobody in it listens to.
    return answer in _REACHED and not (_LOOPBACK in place and answer == "ECONNREFUSED")


def _raw(facts: Facts) -> Verdict:
    kinds: dict[str, Any] = facts["raw"]
    wrong = [f"{name} {who}" for who, answers in kinds.items() for name, answer in answers.items() if answer == "done"]
    wrong = [f"a socket was made: {each}" for each in wrong]
    return verdict(wrong, f"{sum(map(len, kinds.values()))} tries refused")


def _names(facts: Facts) -> Verdict:
    wrong = [f"a name was resolved {who}" for who, answer in facts["name"].items() if answer == "done"]
    return verdict(wrong, "no name is resolved")


def _found_closed(facts: Facts) -> Verdict:
    condition = facts["condition"]
    problems = [] if condition.get("status") == "True" else [condition.get("message") or "NetworkIsolated is not True"]
    return verdict(problems, condition.get("message") or "NetworkIsolated is True")


_ELSEWHERE: Final = "Local sandboxes have no network at all; rows network-internet to network-raw show that."
# By id: the promise, what is tried, what is said where there is nothing to try, and whether it is about clusters alone.
_GROUPS: Final[dict[str, tuple[str, str, str, bool]]] = {
    "api-server": (
        "The API server can't be reached.",
        "Connect to its Service and to each of its endpoints",
        "No address is known.",
        True,
    ),
    "nodes": (
        "The nodes can't be reached: kubelet and SSH.",
        "Connect to ports 10250, 10255 and 22 of the nodes",
        "No node's address could be read.",
        True,
    ),
    "metadata": (
        "The clouds' metadata addresses can't be reached.",
        "Connect to the address of each large cloud, of both families",
        "No address is known.",
        False,
    ),
    "pods": (
        "Other sandboxes can't be reached, by TCP or UDP.",
        "Connect to a server that listens in another sandbox",
        "No other sandbox could be made.",
        True,
    ),
    "tenants": (
        "A sandbox of one tenant can't reach another tenant's.",
        "Connect to a server that listens in another tenant's sandbox",
        "There is one namespace of sandboxes, so there are no other tenants.",
        True,
    ),
    "components": (
        "Gateway and operator can't be reached.",
        "Connect to each port of their Services and pods",
        "No pod of theirs was found.",
        True,
    ),
    "dns": (
        "The cluster's DNS does not answer, by TCP or UDP.",
        "Ask each Service for DNS for a name",
        "No Service for DNS was found.",
        True,
    ),
    "host": (
        "The machine itself can't be reached.",
        "Connect to a server that listens on the machine's addresses",
        "No address is known.",
        False,
    ),
    "internet": (
        "The internet can't be reached.",
        "Connect to 1.1.1.1 and ask it for a name by UDP",
        "No address is known.",
        False,
    ),
    "ipv6": (
        "Nothing is reached over IPv6 either.",
        "Connect to addresses of the internet, the cluster and clouds over IPv6",
        "No address is known.",
        False,
    ),
    "icmp": (
        "No echo request is answered.",
        "Ping the nodes and the internet",
        "No address is known.",
        False,
    ),
}


def _group(name: str) -> Row:
    promise, tried, missing, cluster = _GROUPS[name]
    local = name == "host"
    return Row(
        id=f"network-{name}",
        topic="Network",
        promise=promise,
        tried=f"{tried}, {_BESIDE}." if not local else f"{tried}.",
        bound=_BOUND,
        source="network",
        judge=partial(_judge, name, missing),
        kinds=("local",) if local else ("kubernetes",) if cluster else ("kubernetes", "local"),
        elsewhere=_ELSEWHERE if cluster else "Row network-nodes is about the node." if local else "",
    )


ROWS: Final = (
    Row(
        id="network-found-closed",
        topic="Network",
        promise="A sandbox that finds its network open is never handed out.",
        tried="Wait for a new sandbox, whose runner probes its network, and read its condition NetworkIsolated.",
        bound="What the runner probes: API server, node, metadata, DNS and another pod. A warm sandbox probed earlier.",
        source="closed",
        judge=_found_closed,
        kinds=("kubernetes",),
        elsewhere=_ELSEWHERE,
    ),
    *map(_group, _GROUPS),
    Row(
        id="network-names",
        topic="Network",
        promise="No name is resolved.",
        tried="Resolve a name of the cluster by the C library.",
        bound="One name, by the name servers that the sandbox has.",
        source="network",
        judge=_names,
    ),
    Row(
        id="network-raw",
        topic="Network",
        promise="Code can have no raw or packet socket, by which addresses are forged, and none to a hypervisor.",
        tried="Make raw and packet sockets, and one to the hypervisor (vsock).",
        bound="Whether the socket can be made; nothing is sent.",
        source="network",
        judge=_raw,
    ),
)
