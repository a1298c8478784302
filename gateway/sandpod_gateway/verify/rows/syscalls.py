"""Which system calls do not reach the kernel."""

from functools import partial
from typing import Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, not_applicable, verdict

_REFUSED: Final = ("EPERM", "ENOSYS", "EACCES")
_BOUND: Final = (
    "Calls are made with impossible arguments: a filter refuses them before the kernel finds fault with these. Holes "
    "in calls that are allowed are not shown."
)
GROUPS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "mounts": (
        "File systems can't be mounted, moved or changed.",
        (
            *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick"),
            "mount_setattr",
        ),
    ),
    "namespaces": (
        "Code can make and enter no namespaces, not even a user namespace.",
        (
            *("unshare user", "unshare mnt", "unshare pid", "unshare net", "unshare cgroup", "setns"),
            *("clone user", "clone mnt", "clone pid", "clone net", "clone3 user"),
        ),
    ),
    "modules": (
        "No kernel or kernel module can be loaded, and the machine can't be restarted.",
        (
            *(
                "init_module",
                "finit_module",
                "delete_module",
                "create_module",
                "kexec_load",
                "kexec_file_load",
                "reboot",
            ),
            *("swapon", "swapoff"),
        ),
    ),
    "bpf": ("No program can be loaded into the kernel.", ("bpf",)),
    "perf": ("The kernel's performance counters can't be used.", ("perf_event_open", "lookup_dcookie")),
    "userfaultfd": ("Page faults can't be held up, by which many exploits win races.", ("userfaultfd",)),
    "io-uring": ("io_uring can't be used.", ("io_uring_setup", "io_uring_enter", "io_uring_register")),
    "keyring": ("The kernel's keyrings can't be used.", ("keyctl", "add_key", "request_key")),
    "ptrace": ("The sandbox's first process can't be traced or read.", ("ptrace", "process_vm_readv")),
    "handles": ("Files can't be opened past the mounts by their handle.", ("open_by_handle_at",)),
    "clock": (
        "Clock and machine name can't be changed.",
        ("settimeofday", "clock_settime", "sethostname", "setdomainname", "acct", "quotactl"),
    ),
    "ports": ("Hardware ports and the kernel's log are out of reach.", ("iopl", "ioperm", "syslog", "vhangup")),
}


def _refused(names: tuple[str, ...], facts: Facts) -> Verdict:
    answers = facts["answers"]
    if not answers:
        return not_applicable(f"The numbers of system calls are not known for {facts['machine']}.")
    # What a kernel does not let anybody trace is, for that process, not there.
    fine = (*_REFUSED, "ESRCH") if "ptrace" in names else _REFUSED
    seen = {name: answers[name] for name in names if name in answers}
    wrong = [f"{name} answered {answer}" for name, answer in seen.items() if answer not in fine]
    return verdict(wrong, ", ".join(f"{name}: {answer}" for name, answer in seen.items()))


CALLS: Final = sorted({name.partition(" ")[0] for _, names in GROUPS.values() for name in names} - {"clone", "clone3"})
"""The calls that are tried, by their names."""
ROWS: Final = tuple(
    Row(
        id=f"syscall-{name}",
        topic="System calls",
        promise=promise,
        tried=f"Call {', '.join(calls)}.",
        bound=_BOUND,
        source="syscalls",
        judge=partial(_refused, calls),
    )
    for name, (promise, calls) in GROUPS.items()
)
