"""Who the code is, what it may do, what it sees of other processes, and what it was given."""

import os
import socket

from sandpod_gateway.verify.inside.tools import attempt, tell, text_of

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
TOKENS = ("/var/run/secrets/kubernetes.io", "/run/secrets/kubernetes.io", "/var/run/secrets", "/run/secrets")


def status_of(process: str) -> "dict[str, str]":
    """Return what the kernel says of a process."""
    lines = text_of("/proc/" + process + "/status").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def processes() -> "list[str]":
    """Return the names of all processes that are seen, by their number."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    return ["%d %s" % (pid, text_of("/proc/%d/comm" % pid).strip()) for pid in pids[:200]]


def tokens() -> "list[str]":
    """Return files that look like credentials of a service account."""
    found = [path for path in TOKENS if os.path.isdir(path) and os.listdir(path)]
    for line in text_of("/proc/self/mountinfo").splitlines():
        point = line.split(" ")[4] if line.count(" ") > 4 else ""
        inside = [os.path.join(point, name) for name in ("token", "ca.crt", "namespace")]
        found += [path for path in inside if "secrets" in point and os.path.isfile(path)]
    return sorted(set(found))


def main() -> None:
    """Tell it."""
    status = status_of("self")
    names = [name for name in os.environ if name.startswith("KUBERNETES") or name.endswith("_SERVICE_HOST")]
    tell(
        {
            "uids": list(os.getresuid()),
            "gids": list(os.getresgid()),
            "groups": os.getgroups(),
            "capabilities": {name: status.get(name, "").strip() for name in SETS},
            # The runner has a filter of its own for programs: what the first process has is the sandbox's.
            "no_new_privileges": [each.get("NoNewPrivs", "").strip() for each in (status, status_of("1"))],
            "seccomp": [each.get("Seccomp", "").strip() for each in (status, status_of("1"))],
            "tokens": tokens(),
            "services": sorted(names),
            "processes": processes(),
            "first": text_of("/proc/1/cmdline").replace("\0", " ").strip()[:200],
            "interfaces": [name for _, name in socket.if_nameindex()],
            "shared": {name: text_of("/proc/sysvipc/" + name).count("\n") for name in ("shm", "sem", "msg")},
            "signal": attempt(os.kill, 1, 0),
            "user": {name: attempt(act, 0) for name, act in (("setuid", os.setuid), ("setgid", os.setgid))},
            "users_mapped": text_of("/proc/self/uid_map").split(),
        }
    )


main()
