"""The known ways out of a container, each tried as far as it tells whether it is open: nothing is changed outside."""

import os
import socket
import stat

from sandpod_gateway.verify.inside.tools import attempt, opened, tell, text_of

RUNTIMES = (
    *("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/var/run/crio/crio.sock"),
    *("/run/podman/podman.sock", "/var/run/cri-dockerd.sock", "/run/k3s/containerd/containerd.sock"),
    *(
        "/run/buildkit/buildkitd.sock",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
    ),
    *("/run/dbus/system_bus_socket", "/run/systemd/private", "/run/udev/control"),
)
PROGRAMS = ("docker", "containerd", "crio", "podman", "kubelet", "dbus", "systemd")
KERNEL_SETTINGS = (
    *("core_pattern", "modprobe", "hostname", "kptr_restrict", "yama/ptrace_scope", "unprivileged_bpf_disabled"),
    *("randomize_va_space", "sysrq", "panic", "usermodehelper/bset", "poweroff_cmd"),
)
PROC = (
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/bus/pci/devices",
    "/proc/fs/nfsd",
    "/proc/acpi/wakeup",
    "/proc/mtrr",
    "/proc/scsi/scsi",
)
SYS = (
    *(
        "/sys/kernel/uevent_helper",
        "/sys/kernel/vmcoreinfo",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/power/state",
    ),
    *(
        "/sys/power/disk",
        "/sys/kernel/profiling",
        "/sys/module/kernel/parameters/panic",
        "/sys/kernel/kexec_crash_size",
    ),
    *("/sys/block/loop0/uevent", "/sys/class/net/lo/mtu", "/sys/firmware/efi/vars", "/sys/devices/virtual/net/lo/mtu"),
)
KERNEL_MEMORY = (
    "/proc/kcore",
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
    "/proc/kmsg",
    "/dev/kmsg",
    "/dev/crash",
    "/proc/vmcore",
)
DEBUG = (
    *("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/debug/tracing", "/sys/fs/bpf", "/sys/kernel/security"),
    *("/sys/firmware/acpi", "/sys/firmware/dmi", "/proc/acpi", "/sys/fs/pstore", "/sys/devices/virtual/powercap"),
)
TELLING = (
    "/proc/keys",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/latency_stats",
    "/proc/timer_stats",
    "/proc/pagetypeinfo",
)
DEVICES = (
    *(
        "/dev/sda",
        "/dev/sda1",
        "/dev/vda",
        "/dev/vda1",
        "/dev/xvda",
        "/dev/nvme0n1",
        "/dev/dm-0",
        "/dev/loop0",
        "/dev/loop-control",
    ),
    *(
        "/dev/fuse",
        "/dev/kvm",
        "/dev/net/tun",
        "/dev/vhost-net",
        "/dev/mapper/control",
        "/dev/cpu/0/msr",
        "/dev/nvidiactl",
        "/dev/uinput",
    ),
)
CGROUP = "/sys/fs/cgroup"


def sockets() -> "dict[str, object]":
    """Return sockets of runtimes that can be reached, by path and by abstract name."""
    found = {}
    for path in RUNTIMES:
        try:
            there = stat.S_ISSOCK(os.stat(path).st_mode)
        except OSError:
            continue
        if there:
            found[path] = attempt(connect, path)
    names = [line.split()[-1] for line in text_of("/proc/net/unix").splitlines()[1:] if len(line.split()) > 7]
    strange = [name for name in names if any(each in name for each in PROGRAMS)]
    return {"paths": found, "names": sorted(set(strange))[:20]}


def connect(path: str) -> None:
    """Connect to a socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(2)
        made.connect(path)


def cgroups() -> "dict[str, str]":
    """Return what can be changed of control groups: `release_agent` starts a program of the node."""
    found = {}
    for folder in (CGROUP, *(os.path.join(CGROUP, name) for name in ("memory", "rdma", "devices", "pids", "cpu"))):
        if not os.path.isdir(folder):
            continue
        for name in (
            "release_agent",
            "notify_on_release",
            "cgroup.procs",
            "memory.max",
            "pids.max",
            "cpu.max",
            "tasks",
        ):
            if os.path.lexists(os.path.join(folder, name)):
                found[os.path.join(folder, name)] = opened(os.path.join(folder, name), os.O_WRONLY)
        made = os.path.join(folder, "sandpod-verify")
        found[made] = attempt(os.mkdir, made)
        attempt(os.rmdir, made)
    return found


def descriptors() -> "dict[str, str]":
    """Return own descriptors that lead to folders, or to files outside: a runtime once leaked such a one."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target, mode = os.readlink("/proc/self/fd/" + name), os.stat("/proc/self/fd/" + name).st_mode
        except OSError:
            continue
        if (stat.S_ISDIR(mode) and not target.startswith("/proc/")) or (
            stat.S_ISREG(mode)
            and int(name) > 2
            and not os.path.exists(target)
            and "memfd:" not in target
            and "(deleted)" not in target
        ):
            found[name] = target
    try:
        os.getcwd()
    except OSError:
        found["cwd"] = "unreachable"
    return found


def first() -> "dict[str, str]":
    """Return what can be had of process 1: its root would be another, its files the runner's."""
    return {
        "root": attempt(os.listdir, "/proc/1/root/"),
        "cwd": attempt(os.listdir, "/proc/1/cwd/"),
        "descriptors": attempt(os.listdir, "/proc/1/fd"),
        "memory": opened("/proc/1/mem", os.O_RDWR),
        "environment": attempt(lambda: open("/proc/1/environ", "rb").read()),
        "program": opened("/proc/1/exe", os.O_WRONLY),
        "own program": opened("/proc/self/exe", os.O_WRONLY),
    }


def devices() -> "dict[str, object]":
    """Return devices of the node that are there, and what comes of opening and of making some."""
    there = []
    for folder, _, names in os.walk("/dev", onerror=lambda _: None):
        for name in names:
            try:
                if stat.S_ISBLK(os.lstat(os.path.join(folder, name)).st_mode):
                    there.append(os.path.join(folder, name))
            except OSError:
                continue
    made = "/tmp/sandpod-verify-device"
    tries = {
        "block": attempt(os.mknod, made, 0o60600, os.makedev(8, 0)),
        "character": attempt(os.mknod, made, 0o20600, os.makedev(1, 1)),
    }
    attempt(os.unlink, made)
    return {
        "blocks": there[:20],
        "opened": {path: opened(path, os.O_RDONLY) for path in DEVICES if os.path.exists(path)},
        "made": tries,
    }


def addresses() -> bool:
    """Return whether the kernel tells where its functions are."""
    lines = text_of("/proc/kallsyms").splitlines()[:50]
    return any(set(line.split(" ")[0]) != {"0"} for line in lines if line)


def main() -> None:
    """Tell it."""
    tell(
        {
            "sockets": sockets(),
            "settings": {name: opened("/proc/sys/kernel/" + name, os.O_WRONLY) for name in KERNEL_SETTINGS},
            "proc": {path: opened(path, os.O_WRONLY) for path in PROC},
            "sys": {path: opened(path, os.O_WRONLY) for path in SYS},
            "cgroups": cgroups(),
            "descriptors": descriptors(),
            "first": first(),
            "devices": devices(),
            "memory": {path: opened(path, os.O_RDONLY) for path in KERNEL_MEMORY},
            "debug": {path: len(os.listdir(path)) for path in DEBUG if attempt(os.listdir, path) == "done"},
            "telling": {path: len(text_of(path)) for path in TELLING},
            "addresses": addresses(),
        }
    )


main()
