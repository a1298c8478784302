"""Whole objects: whatever a pod has or lacks is seen here."""

import json
from typing import Any

import pytest

from sandpod_api.metadata_addresses import METADATA
from sandpod_api.types import NetworkProfile
from sandpod_operator.manifests.pod import build_pod, build_volume_claim, find_profile, workspace_of
from support.operator.world import a_sandbox, a_template, settings

PROBED = ["10.96.0.1:443", "$(NODE_IP):10250", *METADATA, "10.96.0.10:53"]
CLOSED = NetworkProfile(name="none")

PLAIN_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "box",
        "namespace": "boxes",
        "labels": {
            "app.kubernetes.io/managed-by": "sandpod",
            "sandpod.dev/sandbox": "box",
            "sandpod.dev/template": "python",
            "sandpod.dev/network": "none",
            "sidecar.istio.io/inject": "false",
            "istio.io/dataplane-mode": "none",
        },
        "annotations": {"linkerd.io/inject": "disabled"},
        "ownerReferences": [
            {
                "apiVersion": "sandpod.dev/v1alpha1",
                "kind": "Sandbox",
                "name": "box",
                "uid": "uid-box",
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    },
    "spec": {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "hostname": "sandbox",
        "restartPolicy": "Never",
        "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["127.0.0.1"],
            "options": [{"name": "timeout", "value": "1"}, {"name": "attempts", "value": "1"}],
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 2,
        "activeDeadlineSeconds": 14 * 86400 + 3600,
        "containers": [
            {
                "name": "sandbox",
                "image": "sandpod/sandbox:test",
                "imagePullPolicy": "IfNotPresent",
                "command": ["/opt/sandpod/runner/bin/python3", "-I", "-m", "sandpod_runner", "serve"],
                "workingDir": "/workspace",
                "env": [
                    {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                    {
                        "name": "SANDPOD_PROBES",
                        "value": ",".join(PROBED),
                    },
                    {"name": "SANDPOD_PROBE_INTERVAL", "value": "300"},
                    {"name": "SANDPOD_PREIMPORT", "value": ""},
                    {"name": "SANDPOD_OPEN_FILES", "value": "1024"},
                    {"name": "SANDPOD_RUN_TIMEOUT", "value": "3600"},
                    {"name": "SANDPOD_OUTPUT_BYTES", "value": "2147483648"},
                    {"name": "SANDPOD_WORKSPACE_BYTES", "value": "268435456"},
                    {"name": "SANDPOD_PACKAGES", "value": "/packages"},
                    {"name": "SANDPOD_PACKAGES_BYTES", "value": "1073741824"},
                    {"name": "SANDPOD_IN_MEMORY", "value": "/workspace,/tmp"},
                    {"name": "SANDPOD_MEMORY_LIMIT", "value": "536870912"},
                    {"name": "SANDPOD_CLOSED_NETWORK", "value": "1"},
                ],
                "resources": {
                    "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": str(1280 * 2**20)},
                    "requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": str(256 * 2**20)},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "runAsUser": 1000,
                    "runAsGroup": 1000,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "startupProbe": {
                    "exec": {"command": ["/opt/sandpod/runner/bin/python3", "-I", "-m", "sandpod_runner", "ready"]},
                    "periodSeconds": 1,
                    "timeoutSeconds": 5,
                    "failureThreshold": 60,
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "volumeMounts": [
                    {"name": "workspace", "mountPath": "/workspace"},
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "packages", "mountPath": "/packages"},
                ],
            }
        ],
        "volumes": [
            {"name": "workspace", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
            {"name": "packages", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    },
}


def test_pod_of_a_plain_template_is_exactly_this() -> None:
    assert build_pod(a_sandbox(), a_template(), CLOSED, settings()) == PLAIN_POD


def spec_of(**template: Any) -> dict[str, Any]:
    pod = build_pod(a_sandbox(), a_template(**template), CLOSED, settings())
    result: dict[str, Any] = pod["spec"]
    return result


SAME = ("image", "imagePullPolicy", "resources", "securityContext")


def test_template_adds_placement_and_secrets_and_changes_nothing_else() -> None:
    spec = spec_of(
        nodeSelector={"pool": "sandboxes"},
        tolerations=[{"key": "sandboxes", "effect": "NoSchedule"}, {"key": "x", "operator": "Equal", "value": "y"}],
        imagePullSecrets=["registry"],
        runtimeClassName="gvisor",
    )
    added = {
        "nodeSelector": {"pool": "sandboxes"},
        "tolerations": [
            {"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "x", "operator": "Equal", "value": "y"},
        ],
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "gvisor",
        # A RuntimeClass promises a kernel of its own: which one that is is told before anything else runs.
        "initContainers": [
            {
                "name": "kernel",
                "command": ["/opt/sandpod/runner/bin/python3", "-I", "-m", "sandpod_runner", "kernel"],
                "workingDir": "/",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                **{key: PLAIN_POD["spec"]["containers"][0][key] for key in SAME},
            }
        ],
    }
    assert spec == {**PLAIN_POD["spec"], **added}


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ({}, {"type": "RuntimeDefault"}),
        ({"type": "Localhost", "localhostProfile": "p"}, {"type": "Localhost", "localhostProfile": "p"}),
    ],
)
def test_apparmor_profile_is_written_where_the_template_has_one(asked: dict[str, Any], written: dict[str, Any]) -> None:
    context = {**PLAIN_POD["spec"]["securityContext"], "appArmorProfile": written}
    assert spec_of(appArmorProfile=asked) == {**PLAIN_POD["spec"], "securityContext": context}


@pytest.mark.parametrize(
    ("template", "default", "runtime", "possible", "host_users"),
    [
        (None, None, None, False, None),
        (None, None, None, True, False),
        (None, False, None, False, False),
        (None, True, None, True, None),
        (True, False, None, True, None),
        (False, None, None, False, False),
        (False, True, "gvisor", False, False),
        (None, False, "gvisor", False, None),
        (None, True, "kata", True, False),
    ],
)
def test_user_namespace_is_the_templates_word_then_the_operators_then_what_nodes_can(
    *, template: bool | None, default: bool | None, runtime: str | None, possible: bool, host_users: bool | None
) -> None:
    made = a_template(hostUsers=template, runtimeClassName=runtime)
    pod = build_pod(a_sandbox(), made, CLOSED, settings(host_users=default), user_namespaces=possible)
    assert pod["spec"].get("hostUsers") is host_users


@pytest.mark.parametrize(("own", "policy"), [(True, "Strict"), (False, None)])
def test_groups_of_an_image_are_kept_out_where_the_runtime_is_known_to_do_it(*, own: bool, policy: str | None) -> None:
    pod = build_pod(a_sandbox(), a_template(), CLOSED, settings(), user_namespaces=own)
    assert pod["spec"]["securityContext"].get("supplementalGroupsPolicy") == policy


def env_of(pod: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"] if "value" in e}


def test_process_limit_is_set_only_in_a_user_namespace_of_its_own() -> None:
    shared = build_pod(a_sandbox(), a_template(), CLOSED, settings())
    assert "SANDPOD_PROCESSES" not in env_of(shared)
    for asked, possible in ((False, False), (None, True)):
        made = a_template(hostUsers=asked, limits={"processes": 99})
        own = build_pod(a_sandbox(), made, CLOSED, settings(), user_namespaces=possible)
        assert env_of(own)["SANDPOD_PROCESSES"] == "99"


def test_runner_is_told_limits_and_modules() -> None:
    made = a_template(preimport=["numpy", "pandas"], limits={"openFiles": 64}, workspace={"size": "1Gi"})
    env = env_of(build_pod(a_sandbox(), made, CLOSED, settings()))
    assert env["SANDPOD_PREIMPORT"] == "numpy,pandas"
    assert env["SANDPOD_OPEN_FILES"] == "64"
    assert env["SANDPOD_WORKSPACE_BYTES"] == str(2**30)


def test_foreign_image_gets_the_runner_from_a_container_that_ran_before_and_can_only_read_it() -> None:
    spec = spec_of(image="ruby:3.3", runner="Injected")
    [brings] = spec["initContainers"]
    [container] = spec["containers"]
    plain = PLAIN_POD["spec"]["containers"][0]
    place = {"name": "runner", "mountPath": "/opt/sandpod/runner"}
    resources = {
        "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": str(1408 * 2**20)},
        "requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": str(384 * 2**20)},
    }
    assert brings == {
        "name": "runner",
        "image": "runner:test",
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "sh",
            "-c",
            "cp -R /opt/sandpod/portable/. /opt/sandpod/runner && chmod 0111 /opt/sandpod/runner/bin/shielded-python3",
        ],
        "resources": resources,
        "securityContext": plain["securityContext"],
        "volumeMounts": [place],
    }
    assert container == {
        **plain,
        "image": "ruby:3.3",
        "env": [*plain["env"], {"name": "SANDPOD_PYTHON", "value": "python3"}, {"name": "LD_PRELOAD", "value": ""}],
        "resources": resources,
        "volumeMounts": [*plain["volumeMounts"], {**place, "readOnly": True}],
    }
    assert spec["volumes"] == [*PLAIN_POD["spec"]["volumes"], {"name": "runner", "emptyDir": {"sizeLimit": "128Mi"}}]
    others = {"initContainers", "containers", "volumes"}
    assert {k: v for k, v in spec.items() if k not in others} == {
        k: v for k, v in PLAIN_POD["spec"].items() if k not in others
    }


def test_runner_comes_from_the_image_that_the_operator_is_told() -> None:
    pod = build_pod(a_sandbox(), a_template(runner="Injected"), CLOSED, settings(runner_image="r.example/s:2"))
    assert pod["spec"]["initContainers"][0]["image"] == "r.example/s:2"


def storage_of(spec: dict[str, Any]) -> tuple[int, int]:
    """Return how much of the node's disk a pod requests, and its limit; MiB."""
    found = spec["containers"][0]["resources"]
    requested, limit = (int(found[kind]["ephemeral-storage"]) // 2**20 for kind in ("requests", "limits"))
    return requested, limit


def test_disk_workspace_and_runner_both_count_as_storage() -> None:
    workspace = {"medium": "Disk", "size": "1Gi"}
    spec = spec_of(runner="Injected", workspace=workspace, resources={"ephemeralStorage": "64Mi"})
    assert storage_of(spec) == (1216, 2240)


@pytest.mark.parametrize(
    ("workspace", "folders"),
    [
        ({"medium": "Memory"}, "/workspace,/tmp"),
        ({"medium": "Disk"}, "/tmp"),
        ({"medium": "Memory", "persistent": True}, "/tmp"),
    ],
)
def test_runner_is_told_which_folders_are_in_memory(workspace: dict[str, Any], folders: str) -> None:
    pod = build_pod(a_sandbox(workspace={"size": "1Gi", **workspace}), a_template(), CLOSED, settings())
    assert env_of(pod)["SANDPOD_IN_MEMORY"] == folders


def test_languages_reach_the_runner_as_they_are_written() -> None:
    language = {"name": "c", "command": ["sh", "-c", "$(NODE_IP) $$ '{file}'"], "extension": ".c"}
    env = env_of(build_pod(a_sandbox(), a_template(languages=[language]), CLOSED, settings()))
    assert "SANDPOD_LANGUAGES" not in env_of(PLAIN_POD)
    # What Kubernetes makes of it: a doubled $ becomes one, and $( is only then no reference.
    assert "$(" not in env["SANDPOD_LANGUAGES"].replace("$$", "")
    assert json.loads(env["SANDPOD_LANGUAGES"].replace("$$", "$")) == [language]


def test_profile_with_dns_uses_the_clusters_and_does_not_probe_it() -> None:
    profile = NetworkProfile(name="web", dns=True)
    pod = build_pod(a_sandbox(network="web"), a_template(), profile, settings())
    assert pod["spec"]["dnsPolicy"] == "ClusterFirst"
    assert "dnsConfig" not in pod["spec"]
    assert pod["metadata"]["labels"]["sandpod.dev/network"] == "web"
    assert "10.96.0.10:53" not in env_of(pod)["SANDPOD_PROBES"]


def test_disk_workspace_has_its_size_in_the_disk_limit() -> None:
    spec = spec_of(workspace={"size": "1Gi", "medium": "Disk"})
    assert spec["volumes"][0] == {"name": "workspace", "emptyDir": {"sizeLimit": "1Gi"}}
    assert storage_of(spec) == (1280, 2304)


def test_room_for_packages_is_limited_on_the_nodes_disk_and_not_set_aside() -> None:
    spec = spec_of(packagesSize="300Mi", resources={"ephemeralStorage": "64Mi"})
    assert spec["volumes"][3] == {"name": "packages", "emptyDir": {"sizeLimit": "300Mi"}}
    assert storage_of(spec) == (64, 364)
    assert env_of({"spec": spec})["SANDPOD_PACKAGES_BYTES"] == str(300 * 2**20)


def test_persistent_workspace_is_a_volume_claim_of_the_sandbox() -> None:
    sandbox, template = a_sandbox(workspace={"size": "2Gi", "persistent": True}), a_template()
    pod = build_pod(sandbox, template, CLOSED, settings())
    assert pod["spec"]["volumes"][0] == {
        "name": "workspace",
        "persistentVolumeClaim": {"claimName": "box-workspace-uid-box"},
    }
    assert build_volume_claim(sandbox, workspace_of(sandbox, template)) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "box-workspace-uid-box",
            "namespace": "boxes",
            "labels": {"app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/sandbox": "box"},
            "ownerReferences": PLAIN_POD["metadata"]["ownerReferences"],
        },
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }


def test_claimed_sandboxs_pod_needs_no_time_to_wait_in_a_pool() -> None:
    pod = build_pod(a_sandbox(claimed=0), a_template(), CLOSED, settings())
    assert pod["spec"]["activeDeadlineSeconds"] == 7 * 86400 + 3600


def test_profile_is_found_by_name_and_none_is_always_there() -> None:
    template = a_template(networkProfiles=[{"name": "web", "dns": True}])
    assert find_profile(a_sandbox(), template) == CLOSED
    assert find_profile(a_sandbox(network="web"), template) == NetworkProfile(name="web", dns=True)
    assert find_profile(a_sandbox(network="other"), template) is None
