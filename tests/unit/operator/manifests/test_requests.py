"""Requests of pods: lower for those that wait in a pool, if the template says so."""

import json
from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.templates import NetworkProfile
from sandpod_operator.manifests.pod import build_pod
from support.operator.world import a_sandbox, a_template, settings

POOLED = {"labels": {names.LABEL_POOL: "warm"}}
FULL = {"cpu": "50m", "memory": "128Mi"}


def built(*, claimed: float | None = None, meta: Any = None, **template: Any) -> dict[str, Any]:
    sandbox = a_sandbox(claimed=claimed, meta=meta)
    return build_pod(sandbox, a_template(**template), NetworkProfile(name="none"), settings())


def requests(pod: dict[str, Any]) -> list[tuple[str, str]]:
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    found = (each["resources"]["requests"] for each in containers)
    return [(each["cpu"], each["memory"]) for each in found]


def test_pod_of_a_pool_has_the_lower_requests_in_all_containers_and_says_what_it_gets_later() -> None:
    pod = built(meta=POOLED, warmRequests={"cpu": "10m"}, runner="Injected")
    # The quota and the scheduler count the largest of those that begin.
    assert requests(pod) == [("10m", "128Mi")] * 2
    assert json.loads(pod["metadata"]["annotations"]["sandpod.dev/claimed-requests"]) == FULL
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1"


@pytest.mark.parametrize(
    "how",
    [
        {"claimed": 1, "warmRequests": {"memory": "1Mi"}},
        {"claimed": 1, "meta": POOLED, "warmRequests": {"memory": "1Mi"}},
        {"warmRequests": {"memory": "1Mi"}},
        {"meta": POOLED},
        {"meta": POOLED, "warmRequests": {}},
        {"meta": POOLED, "warmRequests": FULL},
    ],
    ids=["made for a claim", "made anew after its claim", "of no pool", "without", "empty", "the same"],
)
def test_every_other_pod_has_the_template_s_from_the_start(how: dict[str, Any]) -> None:
    pod = built(**how)
    assert requests(pod) == [(FULL["cpu"], FULL["memory"])]
    assert "sandpod.dev/claimed-requests" not in pod["metadata"]["annotations"]
