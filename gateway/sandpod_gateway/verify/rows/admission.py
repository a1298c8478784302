"""What the API server refuses."""

from collections.abc import Iterable
from typing import Final

from sandpod_gateway.verify.model import Facts, Row, Status, Verdict, failed, passed, verdict

_ELSEWHERE: Final = "There is no API server."
_POLICY, _LEVEL = "ValidatingAdmissionPolicy", "PodSecurity"
# What Pod Security forbids at the level restricted. All others are the admission policy's alone to refuse.
BY_LEVEL: Final = (
    *("host-network", "host-pid", "host-ipc", "host-path", "privileged", "escalation", "capability-added"),
    *("maybe-root", "root", "seccomp"),
)
BY_POLICY: Final = (
    *("node-name", "injected", "secret", "config-map", "projected-token", "downward", "token", "token-unsaid"),
    *("service-links", "host-aliases", "restart-always", "no-deadline", "shared-processes", "fs-group", "writable"),
    *("root-group", "secret-variable", "config-variable", "all-variables", "port"),
)


def _refused_by(whose: str, names: Iterable[str], facts: Facts) -> Verdict:
    if facts["control"]:
        return Verdict(Status.NOT_TRIED, f"A pod like a sandbox's was refused too: {facts['control']}")
    answers: dict[str, str] = facts["answers"]
    wrong = [
        f"{name} was {'taken' if not answers[name] else 'refused by another'}"
        for name in names
        if whose not in answers[name]
    ]
    return verdict(wrong, f"{len(list(names))} weaker pods refused by {whose}")


def _all_refused(facts: Facts) -> Verdict:
    if facts["control"]:
        return Verdict(Status.NOT_TRIED, f"A pod like a sandbox's was refused too: {facts['control']}")
    taken = [f"{name} was taken" for name, answer in facts["answers"].items() if not answer]
    return verdict(taken, f"{len(facts['answers'])} weaker pods refused, and one like a sandbox's was taken")


def _unchanged(facts: Facts) -> Verdict:
    wrong = [f"{name} could be changed" for name, answer in facts["changes"].items() if not answer]
    return failed("; ".join(wrong)) if wrong else passed(f"{', '.join(facts['changes'])}: refused")


def _row(id_: str, promise: str, tried: str, bound: str, judge: object) -> Row:
    assert callable(judge)  # noqa: S101 - for the type checker
    return Row(
        id=id_,
        topic="Admission",
        promise=promise,
        tried=tried,
        bound=bound,
        source="admission",
        judge=judge,
        kinds=("kubernetes",),
        elsewhere=_ELSEWHERE,
    )


_DRY: Final = "Server-side dry runs with your rights; webhooks without support for dry runs are not asked."
ROWS: Final = (
    _row(
        "admission-weaker-pod",
        "A pod among the sandboxes that is less restricted than a sandbox is refused.",
        "Create such pods as a dry run, each weaker in one thing, and one that is a sandbox's.",
        _DRY,
        _all_refused,
    ),
    _row(
        "admission-policy",
        "The chart's ValidatingAdmissionPolicy is in force, beside Pod Security.",
        "Of these pods, look who refuses those that Pod Security would take.",
        f"{_DRY} One pod for a rule, not each container of it.",
        lambda facts: _refused_by(_POLICY, BY_POLICY, facts),
    ),
    _row(
        "admission-pod-security",
        "Pod Security enforces the level restricted among the sandboxes.",
        "Of these pods, look whether Pod Security refuses those that it must.",
        _DRY,
        lambda facts: _refused_by(_LEVEL, BY_LEVEL, facts),
    ),
    _row(
        "admission-claim-fixed",
        "Nobody can change whose a sandbox is, or its template.",
        "Change the claim and the template of a Sandbox, as a dry run.",
        "Of one Sandbox, with your rights.",
        _unchanged,
    ),
)
