"""What the accounts of gateway, operator and sandboxes may do in the cluster."""

from functools import partial
from typing import Any, Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, verdict
from sandpod_gateway.verify.rights import EVERYWHERE, Held, beyond

_ELSEWHERE: Final = "There are no service accounts."
_SHOWN: Final = 12  # rights that are named


def _held(facts: Facts, component: str) -> Held:
    found: dict[str, list[list[str]]] = facts["components"][component]["held"]
    return {scope: {(verb, resource) for verb, resource in rights} for scope, rights in found.items()}


def _all_components(facts: Facts) -> dict[str, Held]:
    return {component: _held(facts, component) for component in facts["components"]}


def _named(rights: list[tuple[str, str, str]]) -> list[str]:
    found = [f"{verb} {resource} in {scope or 'no namespace'}" for scope, verb, resource in sorted(rights)]
    return found[:_SHOWN] + ([f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])


def _least(component: str, facts: Facts) -> Verdict:
    held = _held(facts, component)
    more = beyond(component, held, facts)
    return verdict(
        _named(more),
        f"{sum(map(len, held.values()))} rights of {facts['components'][component]['account']}, all the chart's",
    )


def _kind(resource: str) -> str:
    return resource.partition(":")[0].partition("/")[0].partition(".")[0]


def _secrets(facts: Facts) -> Verdict:
    wrong = []
    for component, held in _all_components(facts).items():
        for scope, rights in held.items():
            for verb, resource in rights:
                # One that is named, among the release's own; and with sessions' secrets, single ones of sandboxes.
                named = ":" in resource and scope == facts["release"] and component == "gateway"
                single = facts["options"]["secrets"] and scope in facts["sandboxes"] and verb in {"get", "create"}
                if _kind(resource) in {"secrets", "*"} and not named and not (single and component == "gateway"):
                    wrong.append(f"{component} may {verb} {resource} in {scope}")
    return verdict(wrong, "Secrets by their name in the release's namespace alone")


def _nodes(facts: Facts) -> Verdict:
    allowed = {("operator", "get", "nodes"), ("operator", "list", "nodes")}
    wrong = [
        f"{component} may {verb} {resource}"
        for component, held in _all_components(facts).items()
        for rights in held.values()
        for verb, resource in rights
        if _kind(resource) == "nodes" and (component, verb, resource) not in allowed
    ]
    return verdict(wrong, "the operator may get and list nodes at most, the gateway nothing")


def _other_places(facts: Facts) -> Verdict:
    own = {*facts["sandboxes"], facts["release"], EVERYWHERE}
    wrong = [
        f"{component} may {verb} {resource} in {scope}"
        for component, held in _all_components(facts).items()
        for scope, rights in held.items()
        for verb, resource in sorted(rights)
        if scope not in own
    ]
    return verdict(wrong[:_SHOWN], f"no right outside of {', '.join(sorted(own - {EVERYWHERE}))}")


def _asked(facts: Facts) -> Verdict:
    wrong = [f"{component} may {right}" for component, each in facts["components"].items() for right in each["allowed"]]
    count = sum(each["questions"] for each in facts["components"].values())
    return verdict(wrong[:_SHOWN], f"{count} questions, all answered with no")


def _programs(facts: Facts) -> Verdict:
    accounts: dict[str, Any] = facts["programs"]
    wrong = [f"{name} may {verb} {resource}" for name, rights in accounts.items() for verb, resource in rights]
    return verdict(wrong[:_SHOWN], f"{', '.join(accounts)}: no rights")


def _row(id_: str, promise: str, tried: str, judge: object) -> Row:
    assert callable(judge)  # noqa: S101 - for the type checker
    return Row(
        id=id_,
        topic="Rights",
        promise=promise,
        tried=tried,
        bound="Roles and their bindings, which say nothing of other authorizers; row rights-asked asks the API server.",
        source="rights",
        judge=judge,
        kinds=("kubernetes",),
        elsewhere=_ELSEWHERE,
    )


ROWS: Final = (
    _row(
        "rights-gateway",
        "The gateway's account has the rights that the chart gives it, and no more.",
        "Read every Role and binding of the cluster, and compare what reaches the account with the chart's.",
        partial(_least, "gateway"),
    ),
    _row(
        "rights-operator",
        "The operator's account has the rights that the chart gives it, and no more.",
        "Read every Role and binding of the cluster, and compare what reaches the account with the chart's.",
        partial(_least, "operator"),
    ),
    _row(
        "rights-secrets",
        "Neither account can list Secrets, or read any but those of the release by their name.",
        "Look for rights to Secrets in the same bindings.",
        _secrets,
    ),
    _row("rights-nodes", "Neither account can do more to nodes than to look.", "Look for rights to nodes.", _nodes),
    _row(
        "rights-elsewhere",
        "Neither account has rights in other namespaces.",
        "Look for bindings in namespaces that are none of the release's.",
        _other_places,
    ),
    _row(
        "rights-asked",
        "The API server itself refuses both accounts what would do most harm.",
        "Ask it by SubjectAccessReviews: Secrets, pods, rights, policies, nodes, in several namespaces.",
        _asked,
    ),
    _row(
        "rights-programs",
        "The account under which sandboxes' pods run has no rights.",
        "Look for bindings that reach the default account of each namespace of sandboxes, or all accounts.",
        _programs,
    ),
)
