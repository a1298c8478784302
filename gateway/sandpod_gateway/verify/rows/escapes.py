"""Known ways out of containers."""

from collections.abc import Callable
from functools import partial
from typing import Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, verdict


def _none_done(*keys: str) -> Callable[[Facts], Verdict]:
    """Judge attempts, of which none may have succeeded."""

    def judge(facts: Facts) -> Verdict:
        answers: dict[str, str] = {}
        for key in keys:
            found = facts
            for part in key.split("."):
                found = found[part]
            answers |= found
        wrong = [f"{name}: {answer}" for name, answer in answers.items() if answer == "done"]
        return verdict(wrong, f"{len(answers)} tries: {_counted(answers)}")

    return judge


def _counted(answers: dict[str, str]) -> str:
    counts: dict[str, int] = {}
    for answer in answers.values():
        counts[answer] = counts.get(answer, 0) + 1
    return ", ".join(f"{count} {answer}" for answer, count in counts.items()) or "nothing is there"


def _sockets(facts: Facts) -> Verdict:
    found = facts["sockets"]
    wrong = [f"{path} is there ({answer})" for path, answer in found["paths"].items()]
    wrong += [f"the abstract socket {name} is seen" for name in found["names"]]
    return verdict(wrong, "no socket of a container runtime, the kubelet or systemd")


def _descriptors(facts: Facts) -> Verdict:
    found = facts["descriptors"]
    allowed = ("/workspace", "/tmp", "/packages", "/dev/shm")  # noqa: S108 - paths inside
    wrong = [f"descriptor {fd} leads to {to}" for fd, to in found.items() if not to.startswith(allowed)]
    return verdict(wrong, "no descriptor leads to a folder or to a file outside")


def _devices(facts: Facts) -> Verdict:
    found = facts["devices"]
    wrong = [f"{path} is there" for path in found["blocks"]]
    wrong += [f"{path} was opened" for path, answer in found["opened"].items() if answer == "done"]
    wrong += [f"a {kind} device was made" for kind, answer in found["made"].items() if answer == "done"]
    return verdict(wrong, "no device of the node is there, and none can be made")


def _debug(facts: Facts) -> Verdict:
    wrong = [f"{path} shows {count} entries" for path, count in facts["debug"].items() if count]
    return verdict(wrong, "debugfs, tracefs, bpffs, securityfs and ACPI show nothing")


def _telling(facts: Facts) -> Verdict:
    wrong = [f"{path} tells {size} characters" for path, size in facts["telling"].items() if size]
    wrong += ["/proc/kallsyms tells addresses"] if facts["addresses"] else []
    return verdict(wrong, "nothing of keys, schedulers, timers or the kernel's addresses is told")


CAPABILITIES: Final = {
    "CAP_CHOWN": "give a file to root",
    "CAP_DAC_OVERRIDE": "open /etc/shadow for writing",
    "CAP_DAC_READ_SEARCH": "open the node's root folder by its handle (Shocker)",
    "CAP_FOWNER": "change the mode of a folder of root's",
    "CAP_KILL": "signal the node's first process",
    "CAP_MKNOD": "make a device",
    "CAP_NET_ADMIN": "configure an interface",
    "CAP_NET_RAW": "make a raw socket",
    "CAP_SETGID": "join root's group",
    "CAP_SETUID": "become root",
    "CAP_SYS_ADMIN": "mount a file system",
    "CAP_SYS_BOOT": "restart the machine, by a command that there is not",
    "CAP_SYS_CHROOT": "change the root folder",
    "CAP_SYS_NICE": "raise its own priority",
    "CAP_SYS_RESOURCE": "raise a hard limit",
    "CAP_SYS_RAWIO": "open the machine's memory",
    "CAP_AUDIT_WRITE": "bind to the kernel's audit",
}


def _capability(name: str, facts: Facts) -> Verdict:
    answer = facts["capabilities"][name]
    return verdict([f"it was allowed to {CAPABILITIES[name]}"] if answer == "done" else [], f"refused: {answer}")


def _row(id_: str, promise: str, tried: str, judge: Callable[[Facts], Verdict], bound: str = "") -> Row:
    known = "Known places and ways, as far as they tell whether the way is open; nothing outside is changed."
    return Row(
        id=id_, topic="Escapes", promise=promise, tried=tried, bound=bound or known, source="escapes", judge=judge
    )


ROWS: Final = (
    _row(
        "escape-runtime-socket",
        "No socket of a container runtime is there (docker.sock, containerd.sock, CRI-O, kubelet).",
        "Look for and connect to sockets by path, and through /proc/net/unix for abstract ones.",
        _sockets,
    ),
    _row(
        "escape-core-pattern",
        "The kernel's settings can't be changed: core_pattern, modprobe and others name programs that the node runs.",
        "Open files of /proc/sys/kernel for writing.",
        _none_done("settings"),
    ),
    _row(
        "escape-proc",
        "Nothing else of /proc that is the node's can be written to: sysrq-trigger, binfmt_misc, irq.",
        "Open these files for writing.",
        _none_done("proc"),
    ),
    _row(
        "escape-sys",
        "Nothing of /sys can be written to: uevent_helper names a program that the node runs.",
        "Open files of /sys for writing.",
        _none_done("sys"),
    ),
    _row(
        "escape-cgroup",
        "Control groups can't be changed: release_agent names a program that the node runs.",
        "Open release_agent, limits and lists of processes for writing; make a group.",
        _none_done("cgroups"),
    ),
    _row(
        "escape-descriptors",
        "No descriptor of the runtime's was left open (CVE-2024-21626).",
        "Look where own descriptors and the working folder lead.",
        _descriptors,
    ),
    _row(
        "escape-first-process",
        "The first process's root, files, memory and program are out of reach (/proc/1/root, CVE-2019-5736).",
        "Open these, the program for writing.",
        _none_done("first"),
    ),
    _row(
        "escape-devices", "No disk or other device of the node can be opened or made.", "Look, open, mknod.", _devices
    ),
    _row(
        "escape-kernel-memory",
        "Memory and log of the kernel can't be read.",
        "Open /proc/kcore, /dev/mem, /dev/kmsg and others.",
        _none_done("memory"),
    ),
    _row("escape-debugfs", "The kernel's file systems for debugging are empty.", "List them.", _debug),
    _row("escape-kernel-facts", "The kernel tells no keys, addresses or timers.", "Read these files.", _telling),
    *(
        Row(
            id=f"cap-{name.removeprefix('CAP_').lower().replace('_', '-')}",
            topic="Capabilities",
            promise=f"Code can't do what {name} allows.",
            tried=f"Try to {what}.",
            bound="One use of the capability; row capabilities-none reads that it is in no set.",
            source="capabilities",
            judge=partial(_capability, name),
        )
        for name, what in CAPABILITIES.items()
    ),
)
