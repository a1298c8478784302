"""What `sandpod verify` sees where all is well, and for each row a change of it that breaks the row's promise."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

from sandpod_gateway.verify.rows import syscalls
from sandpod_gateway.verify.rows.admission import BY_LEVEL, BY_POLICY
from sandpod_gateway.verify.rows.escapes import CAPABILITIES

Seen = dict[str, dict[str, Any]]
Change = Callable[[Seen], object]

WHO: Final = ("from code", "from beside the runner")
BOX: Final = "boxes"
LOCKED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER: Final = {
    "name": "sandbox",
    "securityContext": LOCKED,
    "resources": {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
}
POD: Final = {
    "metadata": {"name": "a"},
    "spec": {
        "automountServiceAccountToken": False,
        "containers": [CONTAINER],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
    },
}
DENY: Final = {"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}
HARD: Final = {"pods": "50", "limits.cpu": "9", "limits.memory": "9Gi"}
PLACES: Final = {
    "api-server": "tcp 10.96.0.1:443",
    "nodes": "tcp 172.18.0.2:10250",
    "metadata": "tcp 169.254.169.254:80",
    "pods": "udp 10.244.0.9:8765",
    "tenants": "tcp 10.244.0.8:8766",
    "components": "tcp 10.244.0.7:8000",
    "dns": "udp 10.96.0.10:53",
    "host": "tcp 192.168.1.2:40000",
    "internet": "tcp 1.1.1.1:443",
    "ipv6": "tcp [2606:4700:4700::1111]:443",
    "icmp": "ping 172.18.0.2",
}


def good() -> Seen:
    """Return what is seen where every promise is kept, of both kinds of sandboxes at once."""
    calls = {name: "EPERM" for _, names in syscalls.GROUPS.values() for name in names}
    seen: Seen = {
        "identity": {
            "uids": [1000] * 3,
            "gids": [1000] * 3,
            "groups": [1000],
            "user": {"setuid": "EPERM", "setgid": "EPERM"},
            "capabilities": dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
            "no_new_privileges": ["1", "1"],
            "seccomp": ["2", "2"],
            "tokens": [],
            "services": [],
            "processes": ["1 python3", "7 python3"],
            "first": "python3 -m sandpod_runner serve",
            "interfaces": ["lo", "eth0"],
            "shared": {"shm": 1, "sem": 1, "msg": 1},
        },
        "files": {
            "writable": ["/dev/mqueue"],
            "files": {"/etc/passwd": "EROFS"},
            "remount": True,
            "folders": 3000,
            "whole": True,
            "node": [],
            "mounts": [
                {"at": "/", "root": "/", "options": "ro", "kind": "overlay", "source": "overlay"},
                {
                    "at": "/etc/hosts",
                    "root": "/pods/1/hosts",
                    "options": "rw",
                    "kind": "ext4",
                    "source": "/dev/sda1",
                },
            ],
            "sizes": {"/tmp": 2**28, "/dev/shm": 2**28},
        },
        "links": {"made": {"a": "done"}, "answers": {"read a": "invalid_path", "stat a": "link"}},
        "host": {"paths": [], "variable": False, "variables": [], "process": "ESRCH", "processes": 3},
        "apart": {"seen": [], "looked": ["/tmp/mark"]},
        "network": {
            "groups": {group: {who: {place: "timeout"} for who in WHO} for group, place in PLACES.items()},
            "raw": {who: {"raw ICMP": "EPERM"} for who in WHO},
            "name": dict.fromkeys(WHO, "gaierror"),
        },
        "closed": {
            "condition": {"status": "True", "message": "closed"},
            "kernel": {"status": "True", "message": "gVisor"},
            "runtime_class": "gvisor",
        },
        "syscalls": {"machine": "x86_64", "answers": calls},
        "memory": {"taken": False, "outcome": "out_of_memory", "after": True},
        "bounds": {
            "processes": {"started": 250, "most": 320, "why": "no more"},
            "files": {"opened": 1020, "most": 1088, "why": "no more"},
            "core": 0,
            "folders": {"/tmp": {"written": 10, "most": 20, "why": "full"}},
            "groups": {"/sys/fs/cgroup/cpu.max": "100000 100000"},
        },
        "attacks": {"kept": True, "outcomes": {"kills": "ok"}},
        "escapes": {
            "sockets": {"paths": {}, "names": []},
            "settings": {"core_pattern": "EROFS"},
            "proc": {"/proc/sysrq-trigger": "EROFS"},
            "sys": {"/sys/kernel/uevent_helper": "EROFS"},
            "cgroups": {"/sys/fs/cgroup/release_agent": "EROFS"},
            "descriptors": {},
            "first": {"root": "EACCES"},
            "devices": {"blocks": [], "opened": {}, "made": {"block": "EPERM"}},
            "memory": {"/proc/kcore": "EACCES"},
            "debug": {"/proc/acpi": 0},
            "telling": {"/proc/keys": 0},
            "addresses": False,
        },
        "capabilities": {"capabilities": dict.fromkeys(CAPABILITIES, "EPERM")},
        "pods": {"pods": [POD]},
        "admission": {
            "control": "",
            "answers": {
                **dict.fromkeys(BY_POLICY, "ValidatingAdmissionPolicy denied it"),
                **dict.fromkeys(BY_LEVEL, "violates PodSecurity"),
                "user-unsaid": "ValidatingAdmissionPolicy denied it",
            },
            "changes": {"its claim": "a claim is never changed"},
        },
        "rights": _rights(),
        "namespaces": {
            "namespaces": {
                BOX: {
                    "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
                    "policies": [DENY],
                    "quotas": [{"spec": {"hard": HARD}}],
                }
            }
        },
    }
    return deepcopy(seen)


def _rights() -> dict[str, Any]:
    account = {"allowed": [], "questions": 200}
    mine = {"gateway": [["get", "pods/exec"]], "operator": [["get", "pods"]]}
    return {
        "components": {
            name: {**account, "account": f"release:{name}", "held": {BOX: rights}} for name, rights in mine.items()
        },
        "programs": {f"{BOX}:default": []},
        "sandboxes": [BOX],
        "release": "release",
        "options": {"secrets": False, "scale_pools": False, "first_use": False},
    }


def put(path: str, value: Any) -> Change:
    """Return a change that puts a value at a place of the evidence: keys with bars between them."""
    *keys, last = path.split("|")

    def change(seen: Seen) -> None:
        place: Any = seen
        for key in keys:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[int(last) if isinstance(place, list) else last] = value

    return change


def add(path: str, value: Any) -> Change:
    """Return a change that adds a value to a list."""
    keys = path.split("|")

    def change(seen: Seen) -> None:
        place: Any = seen
        for key in keys:
            place = place[key]
        place.append(value)

    return change


def give(component: str, scope: str, verb: str, resource: str) -> Change:
    """Return a change that gives an account a right."""

    def change(seen: Seen) -> None:
        seen["rights"]["components"][component]["held"].setdefault(scope, []).append([verb, resource])

    return change


_SPACE: Final = f"namespaces|namespaces|{BOX}"
_OPENS: Final = {"metadata": {"name": "more"}, "spec": {"podSelector": {}, "egress": [{}]}}
BREAKERS: Final[dict[str, Change]] = {
    "user-not-root": put("identity|groups", [0]),
    "capabilities-none": put("identity|capabilities|CapBnd", "00000000a80425fb"),
    "no-new-privileges": put("identity|no_new_privileges|1", "0"),
    "seccomp-filter": put("identity|seccomp|1", "0"),
    "token-none": add("identity|tokens", "/var/run/secrets/kubernetes.io"),
    "processes-own": add("identity|processes", "812 kubelet"),
    "ipc-own": put("identity|shared|shm", 2),
    "interfaces-own": add("identity|interfaces", "veth12ab"),
    "root-read-only": add("files|writable", "/usr/bin"),
    "host-paths-none": add("files|node", "/var/lib/kubelet"),
    "folders-sized": put("files|sizes|/tmp", 2**40),
    "links-stay-inside": put("links|answers|read a", "done"),
    "host-invisible": put("host|process", "done"),
    "sandboxes-share-no-files": add("apart|seen", "/tmp/mark"),
    "network-found-closed": put("closed|condition", {"status": "False", "message": "reached 10.96.0.1:443"}),
    **{f"network-{group}": put(f"network|groups|{group}|{WHO[1]}|{place}", "open") for group, place in PLACES.items()},
    "network-names": put(f"network|name|{WHO[0]}", "done"),
    "network-raw": put(f"network|raw|{WHO[0]}|raw ICMP", "done"),
    **{
        f"syscall-{group}": put(f"syscalls|answers|{names[0]}", "EFAULT")
        for group, (_, names) in syscalls.GROUPS.items()
    },
    "memory-bounded": put("memory|taken", True),
    "processes-bounded": put("bounds|processes|started", 320),
    "open-files-bounded": put("bounds|files|opened", 1088),
    "disk-bounded": put("bounds|folders|/tmp|written", 20),
    "cpu-bounded": put("bounds|groups|/sys/fs/cgroup/cpu.max", "max 100000"),
    "runner-attacked": put("attacks|kept", False),
    "escape-runtime-socket": put("escapes|sockets|paths", {"/run/containerd/containerd.sock": "EACCES"}),
    "escape-core-pattern": put("escapes|settings|core_pattern", "done"),
    "escape-proc": put("escapes|proc|/proc/sysrq-trigger", "done"),
    "escape-sys": put("escapes|sys|/sys/kernel/uevent_helper", "done"),
    "escape-cgroup": put("escapes|cgroups|/sys/fs/cgroup/release_agent", "done"),
    "escape-descriptors": put("escapes|descriptors", {"7": "/sys/fs/cgroup"}),
    "escape-first-process": put("escapes|first|root", "done"),
    "escape-devices": add("escapes|devices|blocks", "/dev/sda"),
    "escape-kernel-memory": put("escapes|memory|/proc/kcore", "done"),
    "escape-debugfs": put("escapes|debug|/sys/kernel/debug", 40),
    "escape-kernel-facts": put("escapes|addresses", True),
    **{
        f"cap-{name.removeprefix('CAP_').lower().replace('_', '-')}": put(f"capabilities|capabilities|{name}", "done")
        for name in CAPABILITIES
    },
    "pods-locked": put("pods|pods|0|spec|hostPID", True),
    "kernel-isolated": put("closed|kernel", {"status": "False", "message": "the node's kernel"}),
    "admission-weaker-pod": put("admission|answers|user-unsaid", ""),
    "admission-policy": put("admission|answers|node-name", ""),
    "admission-pod-security": put("admission|answers|privileged", "ValidatingAdmissionPolicy denied it"),
    "admission-claim-fixed": put("admission|changes|its claim", ""),
    "rights-gateway": give("gateway", BOX, "create", "pods"),
    "rights-operator": give("operator", BOX, "create", "pods/exec"),
    "rights-secrets": give("operator", "*", "list", "secrets"),
    "rights-nodes": give("gateway", "*", "get", "nodes"),
    "rights-elsewhere": give("operator", "kube-system", "get", "pods"),
    "rights-asked": put("rights|components|gateway|allowed", ["create nodes/proxy in all namespaces"]),
    "rights-programs": put(f"rights|programs|{BOX}:default", [["get", "pods"]]),
    "namespace-closed": put(f"{_SPACE}|policies", []),
    "namespace-not-widened": add(f"{_SPACE}|policies", _OPENS),
    "namespace-quota": put(f"{_SPACE}|quotas", []),
    "namespace-restricted": put(f"{_SPACE}|labels", {}),
}


def broken(row: str) -> Seen:
    """Return what is seen where the promise of a row is broken."""
    seen = good()
    BREAKERS[row](seen)
    return seen
