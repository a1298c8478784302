"""What keeps the namespaces of sandboxes, and so tenants, apart."""

from typing import Any, Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, verdict

_ELSEWHERE: Final = "There are no namespaces and no tenants."
_BOUNDED: Final = ("pods", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
_LEVEL: Final = "pod-security.kubernetes.io/enforce"


def _spaces(facts: Facts) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = facts["namespaces"]
    return found


def closes(policy: dict[str, Any]) -> bool:
    """Return whether a NetworkPolicy closes all pods of its namespace in both directions."""
    spec = policy["spec"]
    kinds = set(spec.get("policyTypes") or [])
    return not any(spec.get(key) for key in ("podSelector", "ingress", "egress")) and {"Ingress", "Egress"} <= kinds


def opens(policy: dict[str, Any]) -> bool:
    """Return whether a NetworkPolicy lets something through, and no template of Sandpod's has it."""
    owners = policy["metadata"].get("ownerReferences") or []
    ours = any(each.get("kind") == "SandboxTemplate" for each in owners)
    return not ours and any(policy["spec"].get(key) for key in ("ingress", "egress"))


def _closed(facts: Facts) -> Verdict:
    wrong = [
        f"{name} has no policy that closes all pods"
        for name, s in _spaces(facts).items()
        if not any(map(closes, s["policies"]))
    ]
    return verdict(wrong, f"{', '.join(_spaces(facts))}: closed for every pod, in both directions")


def _unwidened(facts: Facts) -> Verdict:
    wrong = [
        f"{policy['metadata']['name']} in {name} opens something"
        for name, space in _spaces(facts).items()
        for policy in space["policies"]
        if opens(policy)
    ]
    count = sum(len(space["policies"]) for space in _spaces(facts).values())
    return verdict(wrong, f"{count} policies, none opens anything but for templates' network profiles")


def _quota(facts: Facts) -> Verdict:
    wrong = []
    for name, space in _spaces(facts).items():
        hard = {key for quota in space["quotas"] for key in quota["spec"].get("hard") or {}}
        # Either of a resource's two bounds will do.
        kinds = {key.rpartition(".")[2].removeprefix("count/") for key in hard}
        lacking = sorted({key.rpartition(".")[2] for key in _BOUNDED} - kinds)
        wrong += [f"{name} has no quota of {', '.join(lacking)}"] if lacking else []
    return verdict(wrong, f"{', '.join(_spaces(facts))}: pods, processors and memory are bounded")


def _level(facts: Facts) -> Verdict:
    levels = {name: space["labels"].get(_LEVEL) for name, space in _spaces(facts).items()}
    wrong = [f"{name} enforces {level or 'nothing'}" for name, level in levels.items() if level != "restricted"]
    return verdict(wrong, f"{', '.join(levels)}: restricted")


def _row(id_: str, promise: str, tried: str, bound: str, judge: object) -> Row:
    assert callable(judge)  # noqa: S101 - for the type checker
    return Row(
        id=id_,
        topic="Tenants",
        promise=promise,
        tried=tried,
        bound=bound,
        source="namespaces",
        judge=judge,
        kinds=("kubernetes",),
        elsewhere=_ELSEWHERE,
    )


ROWS: Final = (
    _row(
        "namespace-closed",
        "A NetworkPolicy closes every pod of each namespace of sandboxes, in both directions.",
        "Read the NetworkPolicies of these namespaces.",
        "That they are there; rows network-* show whether they are enforced.",
        _closed,
    ),
    _row(
        "namespace-not-widened",
        "No other policy opens what these close: policies add up.",
        "Read the NetworkPolicies of these namespaces.",
        "NetworkPolicy alone; a plugin's own kinds of policies are not read.",
        _unwidened,
    ),
    _row(
        "namespace-quota",
        "What the sandboxes of each namespace take together is bounded.",
        "Read the ResourceQuotas of these namespaces.",
        "That pods, processors and memory are bounded, by whatever number.",
        _quota,
    ),
    _row(
        "namespace-restricted",
        "Each namespace of sandboxes enforces Pod Security restricted.",
        "Read the labels of these namespaces.",
        "The label; row admission-pod-security shows that it is enforced in one namespace.",
        _level,
    ),
)
