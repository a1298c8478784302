"""Who the code is and what it was given."""

from typing import Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, verdict

_RUNNER: Final = "sandpod"  # in the command line of a sandbox's first process
_NODE: Final = ("kubelet", "containerd", "dockerd", "crio", "systemd", "etcd", "kube-apiserver", "sshd")


def _user(facts: Facts) -> Verdict:
    ids = [*facts["uids"], *facts["gids"], *facts["groups"]]
    gained = [f"{name}(0) was allowed" for name, answer in facts["user"].items() if answer == "done"]
    root = ["it is root or in root's group"] if 0 in ids else []
    return verdict(root + gained, f"uids {facts['uids']}, gids {facts['gids']}, groups {facts['groups']}")


def _capabilities(facts: Facts) -> Verdict:
    sets = facts["capabilities"]
    wrong = [f"{name} is {value or 'unknown'}" for name, value in sets.items() if not value or int(value, 16)]
    return verdict(wrong, f"{', '.join(sets)} are all 0")


def _both(values: list[str]) -> list[tuple[str, str]]:
    return list(zip(("the code", "the first process"), values, strict=True))


def _no_new_privileges(facts: Facts) -> Verdict:
    found = _both(facts["no_new_privileges"])
    wrong = [f"NoNewPrivs of {who} is {value or 'unknown'}" for who, value in found if value != "1"]
    return verdict(wrong, "NoNewPrivs is 1, also of the first process")


def _filtered(facts: Facts) -> Verdict:
    found = _both(facts["seccomp"])
    wrong = [f"Seccomp of {who} is {value or 'unknown'}" for who, value in found if value != "2"]
    return verdict(wrong, "Seccomp is 2, also of the first process: a filter is in force")


def _token(facts: Facts) -> Verdict:
    wrong = [f"{path} is there" for path in facts["tokens"]] + [f"{name} is set" for name in facts["services"]]
    return verdict(wrong, "no folder with a token, no address of a Service in the environment")


def _processes(facts: Facts) -> Verdict:
    seen = facts["processes"]
    wrong = [] if _RUNNER in facts["first"] else [f"the first process is {facts['first'] or 'unknown'}"]
    wrong += [f"process {each} is seen" for each in seen if any(name in each for name in _NODE)]
    return verdict(wrong, f"{len(seen)} processes, the first is {facts['first'] or 'unreadable'}")


def _shared_memory(facts: Facts) -> Verdict:
    # Each file begins with a line of headings.
    wrong = [f"{count - 1} entries of kind {name}" for name, count in facts["shared"].items() if count > 1]
    return verdict(wrong, "no segments, semaphores or queues of others")


def _interfaces(facts: Facts) -> Verdict:
    names = facts["interfaces"]
    wrong = [
        f"interface {name}" for name in names if name.startswith(("cni", "docker", "veth", "flannel", "cali", "br-"))
    ]
    wrong += [f"{len(names)} interfaces"] if len(names) > 6 else []  # noqa: PLR2004 - lo, eth0, and tunnels of some kernels
    return verdict(wrong, f"interfaces: {', '.join(names) or 'none'}")


def _row(id_: str, promise: str, tried: str, bound: str, judge: object) -> Row:
    assert callable(judge)  # noqa: S101 - for the type checker
    return Row(id=id_, topic="Identity", promise=promise, tried=tried, bound=bound, source="identity", judge=judge)


ROWS: Final = (
    _row(
        "user-not-root",
        "Code does not run as root, is in no group of root's, and can't become root.",
        "Read all user and group ids; setuid(0) and setgid(0).",
        "One program of one sandbox. Ids are those inside; with a user namespace the node sees others.",
        _user,
    ),
    _row(
        "capabilities-none",
        "Code has no capability: inherited, permitted, effective, bounding and ambient sets are empty.",
        "Read the five sets of /proc/self/status.",
        "The kernel's own word. Rows cap-* try what capabilities would allow.",
        _capabilities,
    ),
    _row(
        "no-new-privileges",
        "No program gains rights by being executed, such as one with a set-user-ID bit.",
        "Read NoNewPrivs of /proc/self/status and /proc/1/status.",
        "The kernel's own word; no set-user-ID program is started.",
        _no_new_privileges,
    ),
    _row(
        "seccomp-filter",
        "A filter of system calls is in force.",
        "Read Seccomp of /proc/self/status and /proc/1/status.",
        "That there is a filter; rows syscall-* show what it refuses.",
        _filtered,
    ),
    _row(
        "token-none",
        "There is no service account token and no address of the cluster's Services.",
        "Look for the folders of tokens, for mounts with one, and through the environment.",
        "Credentials that an image or a file of the user's holds are not looked for.",
        _token,
    ),
    _row(
        "processes-own",
        "Code sees no processes of the node (hostPID).",
        "List /proc: the first process must be the runner, and no other a program of nodes.",
        "Known names of programs; a sidecar's would not be told from the sandbox's own.",
        _processes,
    ),
    _row(
        "ipc-own",
        "Code shares no memory, semaphores or queues with the node (hostIPC).",
        "Read /proc/sysvipc.",
        "Objects that exist at that moment: a node where nobody has any looks the same.",
        _shared_memory,
    ),
    _row(
        "interfaces-own",
        "Code sees no network interfaces of the node (hostNetwork).",
        "List the interfaces.",
        "Usual names and number of a node's interfaces. Rows network-* try what can be reached.",
        _interfaces,
    ),
)
