"""What the cluster says of the sandboxes' pods themselves."""

from typing import Any, Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, not_applicable, verdict

_ELSEWHERE: Final = "There are no pods."
_VOLUMES: Final = {"name", "emptyDir", "persistentVolumeClaim"}


def weaknesses(pod: dict[str, Any]) -> list[str]:
    """Return in what a pod is less restricted than the operator's; empty for none."""
    spec, wide = pod["spec"], pod["spec"].get("securityContext") or {}
    wrong = [name for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace") if spec.get(name)]
    wrong += ["a token" for _ in (1,) if spec.get("automountServiceAccountToken") is not False]
    wrong += [f"volume {each['name']}" for each in spec.get("volumes") or [] if not each.keys() <= _VOLUMES]
    for container in [
        *(spec.get("initContainers") or []),
        *spec["containers"],
        *(spec.get("ephemeralContainers") or []),
    ]:
        said = {**wide, **(container.get("securityContext") or {})}
        name = container["name"]
        dropped = said.get("capabilities") or {}
        checks = {
            "is privileged": not said.get("privileged"),
            "may gain privileges": said.get("allowPrivilegeEscalation") is False,
            "has capabilities": "ALL" in (dropped.get("drop") or []) and not dropped.get("add"),
            "may be root": said.get("runAsNonRoot") is True and (said.get("runAsUser") or 0) > 0,
            "can write to its root": said.get("readOnlyRootFilesystem") is True,
            "has no filter of system calls": (said.get("seccompProfile") or {}).get("type")
            in {"RuntimeDefault", "Localhost"},
            "mounts a part of a volume": not any(
                "subPath" in each or "subPathExpr" in each for each in container.get("volumeMounts") or []
            ),
            "has no bounds": {"cpu", "memory", "ephemeral-storage"}
            <= (container.get("resources") or {}).get("limits", {}).keys()
            or container in (spec.get("ephemeralContainers") or []),
        }
        wrong += [f"{name} {text}" for text, good in checks.items() if not good]
    return wrong


def _locked(facts: Facts) -> Verdict:
    pods = facts["pods"]
    wrong = [f"{pod['metadata']['name']}: {', '.join(found)}" for pod in pods if (found := weaknesses(pod))]
    return verdict(wrong, f"{len(pods)} pods, all as locked down as the operator makes them")


def _kernel(facts: Facts) -> Verdict:
    if not facts["runtime_class"]:
        return not_applicable("The template names no RuntimeClass: its sandboxes share the node's kernel.")
    found = facts["kernel"]
    return verdict(
        [] if found.get("status") == "True" else [found.get("message") or "unknown"], found.get("message") or "True"
    )


ROWS: Final = (
    Row(
        id="pods-locked",
        topic="Pods",
        promise="Every pod among the sandboxes is locked down: user, capabilities, privileges, volumes, limits.",
        tried="Read the specification of each pod there.",
        bound="What pods say, at that moment; rows about identity show what it comes to in one of them.",
        source="pods",
        judge=_locked,
        kinds=("kubernetes",),
        elsewhere=_ELSEWHERE,
    ),
    Row(
        id="kernel-isolated",
        topic="Pods",
        promise="A sandbox whose template names a RuntimeClass sees a kernel of its own.",
        tried="Read the condition KernelIsolated of a sandbox.",
        bound="What the sandbox sees of its kernel; how well gVisor or Kata keep it apart is theirs to show.",
        source="closed",
        judge=_kernel,
        kinds=("kubernetes",),
        elsewhere="Local sandboxes share this machine's kernel.",
    ),
)
