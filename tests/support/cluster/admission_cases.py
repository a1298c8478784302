"""Pods as the operator makes them, equal ones, and one for each way to be weaker: the admission policy's cases."""

from copy import deepcopy
from typing import Any, Final

from sandpod_api.types import NetworkProfile
from sandpod_gateway.verify.weaker_pods import BAD, BAD_CONTAINERS, BAD_INIT, BAD_LASTING, BAD_MAIN, Change, Pod
from sandpod_operator.manifests.pod import build_pod
from support.operator.world import a_sandbox, a_template, settings

CLOSED: Final = NetworkProfile(name="none")
OPEN: Final = NetworkProfile(name="web", dns=True)


def build(profile: NetworkProfile = CLOSED, *, default: bool | None = None, warm: bool = True, **template: Any) -> Pod:
    sandbox = a_sandbox(claimed=None if warm else 0, network=profile.name)
    return build_pod(sandbox, a_template(**template), profile, settings(host_users=default))


# The operator's pods, with each thing that a template can say about them. One more needs a runtime, see below.
OWN: Final[dict[str, Pod]] = {
    "own-plain": build(),
    "own-claimed": build(warm=False),
    "own-disk": build(workspace={"medium": "Disk"}),
    "own-persistent": build(workspace={"persistent": True}),
    "own-injected": build(
        runner="Injected", image="ruby:3.3", languages=[{"name": "ruby", "command": ["ruby", "{file}"]}]
    ),
    "own-user-namespace": build(hostUsers=False),
    "own-default-user-namespace": build(default=False),
    "own-shared-user-namespace": build(hostUsers=True, default=False),
    "own-profile": build(OPEN, networkProfiles=[{"name": "web", "dns": True}]),
    "own-placed": build(nodeSelector={"pool": "sandboxes"}, tolerations=[{"key": "sandboxes"}]),
    "own-pull-secret": build(imagePullSecrets=["registry"]),
    "own-apparmor": build(appArmorProfile={"type": "Localhost", "localhostProfile": "sandbox"}),
    "own-preimport": build(preimport=["numpy"], limits={"processes": 99}),
}


def said_by_the_pod() -> Pod:
    """Return a pod whose container says no more than it must itself."""
    made = build()
    context = made["spec"]["containers"][0]["securityContext"]
    for key in made["spec"]["securityContext"]:
        context.pop(key, None)
    return made


# No pods of the operator's, and as locked down.
EQUAL: Final[dict[str, Pod]] = {"equal-said-by-the-pod": said_by_the_pod()}


ADMITTED: Final = "sandpod-test-admitted"  # a RuntimeClass, in values.yaml

PLACES: Final = {
    "containers": {**BAD_CONTAINERS, **BAD_LASTING, **BAD_MAIN},
    "initContainers": {**BAD_CONTAINERS, **BAD_LASTING, **BAD_INIT},
    "ephemeralContainers": BAD_CONTAINERS,
}


def with_container(place: str, change: Change, *, base: Pod | None = None) -> Pod:
    """Return a pod with one container that is changed."""
    made = deepcopy(base) if base else build(runner="Injected", hostUsers=False)
    spec = made["spec"]
    if place == "ephemeralContainers":
        main = spec["containers"][0]
        spec[place] = [{"name": "debugger", "image": "x", "securityContext": deepcopy(main["securityContext"])}]
    change(spec[place][0])
    return made


def weak_pods() -> dict[str, tuple[str, Pod]]:
    """Return all bad pods by name, each with the start of its sentence."""
    found: dict[str, tuple[str, Pod]] = {}
    for name, (sentence, change) in BAD.items():
        found[name] = (sentence, build())
        change(found[name][1])
    for place in ("containers", "initContainers"):
        for name, (sentence, change) in PLACES[place].items():
            found[f"{place.lower()}-{name}"] = (sentence, with_container(place, change))
    return found


WEAK: Final = weak_pods()
