"""The machine that a benchmark runs on, and the versions of what it meets there."""

import json
import os
import platform
import subprocess
from pathlib import Path

from benchmarks.results import Machine

GIB = 1 << 30


def said(*command: str) -> str:
    """Return what a program prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def processor() -> str:
    """Return the processor's model."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def system() -> str:
    """Return the operating system."""
    return platform.freedesktop_os_release().get("PRETTY_NAME", "")


def load() -> tuple[float, float, float]:
    """Return the load averages over 1, 5 and 15 minutes, as one prints them."""
    one, five, fifteen = (round(value, 2) for value in os.getloadavg())
    return one, five, fifteen


def machine(*, cluster: bool) -> Machine:
    """Return what this machine is, with its load now, and the cluster of KUBECONFIG if there is one."""
    versions = json.loads(said("kubectl", "version", "--output", "json") or "{}") if cluster else {}
    return Machine(
        processor=processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        kernel=platform.release(),
        system=system(),
        kubernetes=versions.get("serverVersion", {}).get("gitVersion", ""),
        runtime=said(
            *("kubectl", "get", "nodes", "--output", "jsonpath={.items[0].status.nodeInfo.containerRuntimeVersion}")
        )
        if cluster
        else "",
        docker=said("docker", "version", "--format", "{{.Server.Version}}"),
        python=platform.python_version(),
        load_before=load(),
    )


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used, without its children's."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
