"""The API server refuses what is malformed, each with its sentence; kubectl scales and shows. No operator is needed."""

import asyncio
import json
from typing import Any

import pytest

from sandpod_api.names import API_VERSION
from support.cluster.cluster import ClusterError
from support.operator.process import Objects, now

CLAIM = {"owner": "alice", "time": "2026-03-01T12:00:00Z"}


def sandbox(name: str = "box", **spec: Any) -> dict[str, Any]:
    body = {"templateRef": {"name": "python"}, **spec}
    return {"apiVersion": API_VERSION, "kind": "Sandbox", "metadata": {"name": name}, "spec": body}


def template(**spec: Any) -> dict[str, Any]:
    body = {"image": "x", **spec}
    return {"apiVersion": API_VERSION, "kind": "SandboxTemplate", "metadata": {"name": "python"}, "spec": body}


def pool(**spec: Any) -> dict[str, Any]:
    body = {"templateRef": {"name": "python"}, **spec}
    return {"apiVersion": API_VERSION, "kind": "SandboxPool", "metadata": {"name": "warm"}, "spec": body}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "idle timeout past the ttl": (
        sandbox(lifetime={"ttl": 60, "idleTimeout": 61}),
        "idleTimeout can't be longer than ttl",
    ),
    "ttl of eight days": (sandbox(lifetime={"ttl": 8 * 86400}), "should be less than or equal to 604800"),
    "ttl that is no number": (sandbox(lifetime={"ttl": "long"}), "must be of type integer"),
    "unknown field": (sandbox(image="x"), 'unknown field "spec.image"'),
    "unknown field of a part": (sandbox(lifetime={"forever": True}), 'unknown field "spec.lifetime.forever"'),
    "no template": (
        {**sandbox(), "spec": {}},
        "spec.templateRef: Required value",
    ),
    "claim without owner": (sandbox(claim={"owner": "", "time": CLAIM["time"]}), "at least 1 chars long"),
    "claim at no time": (sandbox(claim={"owner": "alice", "time": "yesterday"}), "must be of type date-time"),
    "operating mode": (sandbox(operatingMode="Paused"), 'supported values: "Running", "Suspended"'),
    "name with capitals": (sandbox("My-Box"), "Invalid value"),
    "name with dots": (sandbox("my.box"), "metadata.name"),
    "name of 64 letters": (sandbox("a" * 64), "may not be more than 63"),
    "name of a template": (sandbox(templateRef={"name": "No Such"}), "spec.templateRef.name"),
    "quantity of a workspace": (sandbox(workspace={"size": "1 GB"}), "spec.workspace.size"),
    "quantity of a template": (template(resources={"memory": "lots"}), "spec.resources.memory"),
    "request over the limit": (
        template(resources={"memory": "64Mi", "memoryRequest": "65Mi"}),
        "memoryRequest can't be larger than memory",
    ),
    "warm cores over the request": (
        template(warmRequests={"cpu": "51m"}),
        "warmRequests.cpu can't be larger than resources.cpuRequest",
    ),
    "warm memory over the request": (
        template(warmRequests={"memory": "1Gi"}),
        "warmRequests.memory can't be larger than resources.memoryRequest",
    ),
    "warm requests of a guaranteed pod": (
        template(
            resources={"cpu": "1", "cpuRequest": "1", "memory": "1Gi", "memoryRequest": "1024Mi"},
            warmRequests={"cpu": "10m"},
        ),
        "warmRequests needs cpuRequest or memoryRequest below its limit",
    ),
    "cores requested over the limit": (
        template(resources={"cpu": "500m", "cpuRequest": "1"}),
        "cpuRequest can't be larger than cpu",
    ),
    "profile named none": (
        template(networkProfiles=[{"name": "none"}]),
        "the network profile none is built in and always closed",
    ),
    "two profiles of one name": (template(networkProfiles=[{"name": "a"}, {"name": "a"}]), "Duplicate value"),
    "module that is an option": (template(preimport=["-c"]), "spec.preimport[0]"),
    "language that is built in": (
        template(languages=[{"name": "python", "command": ["python2", "{file}"]}]),
        "python, javascript and shell are built in: give the language another name",
    ),
    "language without a file": (
        template(languages=[{"name": "ruby", "command": ["ruby", "-"]}]),
        "the command is a program, and {file} in one of the words after it",
    ),
    "language that is its file": (
        template(languages=[{"name": "ruby", "command": ["{file}", "{file}"]}]),
        "the command is a program, and {file} in one of the words after it",
    ),
    "two languages of one name": (
        template(languages=[{"name": "ruby", "command": ["ruby", "{file}"]}] * 2),
        "Duplicate value",
    ),
    "name of a language": (
        template(languages=[{"name": "Ruby on Rails", "command": ["ruby", "{file}"]}]),
        "spec.languages[0].name",
    ),
    "extension that is a path": (
        template(languages=[{"name": "ruby", "command": ["ruby", "{file}"], "extension": "/../x"}]),
        "spec.languages[0].extension",
    ),
    "seventeen languages": (
        template(languages=[{"name": f"l{n}", "command": ["ruby", "{file}"]} for n in range(17)]),
        "must have at most 16 items",
    ),
    "where the runner comes from": (template(runner="Sidecar"), 'supported values: "Image", "Injected"'),
    "AppArmor profile without a name": (
        template(appArmorProfile={"type": "Localhost"}),
        "localhostProfile goes with the type Localhost, and with no other",
    ),
    "AppArmor profile with a name too many": (
        template(appArmorProfile={"localhostProfile": "x"}),
        "localhostProfile goes with the type Localhost, and with no other",
    ),
    "no AppArmor": (template(appArmorProfile={"type": "Unconfined"}), '"RuntimeDefault", "Localhost"'),
    "host network": (template(hostNetwork=True), 'unknown field "spec.hostNetwork"'),
    "pool with more at the least than at the most": (
        pool(autoscale={"minReplicas": 3, "maxReplicas": 2}),
        "minReplicas can't be larger than maxReplicas",
    ),
    "pool with no most": (pool(autoscale={"minReplicas": 3}), "spec.autoscale.maxReplicas: Required value"),
    "negative pool": (pool(replicas=-1), "should be greater than or equal to 0"),
    "pool without surge": (pool(updateStrategy={"maxSurge": 0}), "should be greater than or equal to 1"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_malformed_object_is_refused_with_its_sentence(objects: Objects, name: str) -> None:
    manifest, sentence = REFUSED[name]
    text = json.dumps(manifest)
    with pytest.raises(ClusterError) as refused:
        await objects.cluster.kubectl("apply", "-n", objects.namespace, "-f", "-", stdin=text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"claim": {**CLAIM, "owner": "bob"}}, "a claim is written once and never changed"),
        ({"claim": {**CLAIM, "session": "other"}}, "a claim is written once and never changed"),
        ({"claim": None}, "a claim is written once and never changed"),
        ({"templateRef": {"name": "other"}}, "templateRef can't be changed; create another Sandbox"),
        ({"workspace": {"size": "1Gi"}}, "workspace can't be changed; create another Sandbox"),
    ],
)
async def test_claimed_sandbox_cannot_become_another(objects: Objects, change: dict[str, Any], sentence: str) -> None:
    await objects.put(sandbox("held", claim=CLAIM))
    patch = json.dumps({"spec": change})
    with pytest.raises(ClusterError) as refused:
        await objects.cluster.kubectl("patch", "sbx", "held", "-n", objects.namespace, "--type=merge", "-p", patch)
    assert sentence in str(refused.value)


async def test_only_one_of_many_claims_of_one_version_is_taken(objects: Objects) -> None:
    await objects.put(sandbox("wanted"))
    version = (await objects.cluster.sandbox("wanted"))["metadata"]["resourceVersion"]

    async def claim(owner: str) -> str:
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/spec/claim", "value": {"owner": owner, "time": now()}},
        ]
        return await objects.cluster.kubectl(
            "patch", "sbx", "wanted", "-n", objects.namespace, "--type=json", "-p", json.dumps(patch), check=False
        )

    answers = await asyncio.gather(*(claim(f"caller-{n}") for n in range(8)))
    assert len([a for a in answers if "patched" in a]) == 1


async def test_missing_fields_get_their_defaults(objects: Objects) -> None:
    await objects.put(sandbox("plain"))
    spec = (await objects.cluster.sandbox("plain"))["spec"]
    assert spec == {
        "templateRef": {"name": "python"},
        "lifetime": {"ttl": 14400, "idleTimeout": 1800},
        "network": "none",
        "operatingMode": "Running",
    }


async def test_kubectl_scales_a_pool(objects: Objects) -> None:
    await objects.put(pool(replicas=1))
    await objects.cluster.kubectl("scale", "sbxp", "warm", "-n", objects.namespace, "--replicas=3")
    out = await objects.cluster.kubectl(
        "get", "sbxp", "warm", "-n", objects.namespace, "-o", "jsonpath={.spec.replicas}"
    )
    assert out == "3"
    # One that follows its claims has nothing to scale.
    await objects.put(pool(replicas=3, autoscale={"maxReplicas": 5}))
    with pytest.raises(ClusterError, match="replicas is not used with autoscale"):
        await objects.cluster.kubectl("scale", "sbxp", "warm", "-n", objects.namespace, "--replicas=4")


async def set_status(objects: Objects, kind: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    await objects.cluster.kubectl(
        "patch", kind, name, "-n", objects.namespace, "--subresource=status", "--type=merge", "-p", patch
    )


async def test_columns_tell_at_a_glance(objects: Objects) -> None:
    await objects.put(sandbox("shown", claim=CLAIM))
    end = "2026-03-01T13:00:00Z"
    status = {"phase": "Failed", "reason": "OutOfMemory", "nodeName": "n-1", "network": "web", "expiresAt": end}
    await set_status(objects, "sbx", "shown", status)
    short = await objects.cluster.kubectl("get", "sbx", "shown", "-n", objects.namespace)
    head, row = (line.split() for line in short.splitlines())
    assert head == ["NAME", "TEMPLATE", "PHASE", "OWNER", "AGE", "EXPIRES"]
    assert (row[:4], row[5]) == (["shown", "python", "Failed", "alice"], end)
    wide = await objects.cluster.kubectl("get", "sbx", "shown", "-n", objects.namespace, "-o", "wide")
    assert wide.splitlines()[0].split()[-3:] == ["REASON", "NODE", "NETWORK"]
    assert wide.splitlines()[1].split()[-3:] == ["OutOfMemory", "n-1", "web"]
    await objects.put(pool(replicas=4))
    await set_status(objects, "sbxp", "warm", {"readyReplicas": 2, "replicas": 3, "desiredReplicas": 4})
    pools = await objects.cluster.kubectl("get", "sbxp", "warm", "-n", objects.namespace)
    assert [line.split()[:4] for line in pools.splitlines()] == [
        ["NAME", "TEMPLATE", "WANTED", "READY"],
        ["warm", "python", "4", "2"],
    ]


async def test_status_that_is_malformed_is_refused(objects: Objects) -> None:
    await objects.put(sandbox("told"))
    with pytest.raises(ClusterError, match="supported values"):
        await set_status(objects, "sbx", "told", {"phase": "Happy"})
