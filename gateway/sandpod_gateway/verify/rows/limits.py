"""What one sandbox can take."""

from typing import Final

from sandpod_gateway.verify.model import GONE, Facts, Row, Status, Verdict, failed, not_applicable, passed, verdict


def _memory(facts: Facts) -> Verdict:
    if facts["taken"]:
        return failed("more memory than the limit was taken")
    if not facts["after"]:
        return failed(f"the run ended ({facts['outcome']}), and the sandbox did not answer afterwards")
    return passed(f"the run ended ({facts['outcome']}), and the next one worked")


def _processes(facts: Facts) -> Verdict:
    found = facts["processes"]
    if found["started"] >= found["most"]:
        return failed(f"{found['started']} processes were started, and none was refused")
    return passed(f"refused after {found['started']} processes ({found['why']})")


def _open_files(facts: Facts) -> Verdict:
    found = facts["files"]
    wrong = [f"{found['opened']} files were opened, and none was refused"] if found["opened"] >= found["most"] else []
    wrong += ["core dumps are written"] if facts["core"] else []
    return verdict(wrong, f"refused after {found['opened']} files ({found['why']}); no core dumps")


def _disk(facts: Facts) -> Verdict:
    folders = facts["folders"]
    if not folders:
        return not_applicable(
            "No folder of this sandbox has a file system of its own; the kubelet evicts who takes too much."
        )
    wrong = [f"{place} took {f['written'] >> 20} MiB" for place, f in folders.items() if f["written"] >= f["most"]]
    return verdict(wrong, "; ".join(f"{p} refused after {f['written'] >> 20} MiB" for p, f in folders.items()))


def _processor(facts: Facts) -> Verdict:
    groups = facts["groups"]
    quotas = {
        path: value for path, value in groups.items() if path.rpartition("/")[2] in {"cpu.max", "cpu.cfs_quota_us"}
    }
    if not quotas:
        return not_applicable(
            "The control group's files are not shown in this sandbox; row pods-locked reads the limit."
        )
    wrong = [f"{path} is {value}" for path, value in quotas.items() if value.startswith(("max", "-1"))]
    return verdict(wrong, "; ".join(f"{path} is {value}" for path, value in quotas.items()))


def _attacks(facts: Facts) -> Verdict:
    if not facts["kept"]:
        return failed(f"the other sandbox lost its file or did not answer {facts.get('why', '')}".strip())
    tried = ", ".join(f"{name}: {outcome}" for name, outcome in facts["outcomes"].items())
    if GONE in tried:
        return Verdict(Status.NOT_TRIED, f"the attacker's sandbox was gone before the last attack; {tried}")
    return passed(f"the other sandbox kept its file and answered; {tried}")


ROWS: Final = (
    Row(
        id="memory-bounded",
        topic="Limits",
        promise="A program that takes more memory than the limit ends, and its sandbox goes on.",
        tried="Write to 256 MiB more than the limit, then run another program.",
        bound="One program of one sandbox; other sandboxes and the node are not measured meanwhile.",
        source="memory",
        judge=_memory,
    ),
    Row(
        id="processes-bounded",
        topic="Limits",
        promise="The number of processes is bounded.",
        tried="Start processes up to 64 more than the limit (3,000 at most).",
        bound="One sandbox. On clusters without user namespaces for pods the bound is the kubelet's podPidsLimit.",
        source="bounds",
        judge=_processes,
    ),
    Row(
        id="open-files-bounded",
        topic="Limits",
        promise="The number of open files is bounded, and no core dumps are written.",
        tried="Open files up to 64 more than the limit; read the limit of core dumps.",
        bound="One process; several have as many each.",
        source="bounds",
        judge=_open_files,
    ),
    Row(
        id="disk-bounded",
        topic="Limits",
        promise="The workspace and /tmp hold no more than their size.",
        tried="Write 64 MiB more than the size to one file in each.",
        bound="Folders in memory. Those on the node's disk are bounded by the kubelet, which takes minutes to evict.",
        source="bounds",
        judge=_disk,
    ),
    Row(
        id="cpu-bounded",
        topic="Limits",
        promise="Processor time is bounded.",
        tried="Read the quota of the control group.",
        bound="The kernel's own word; no processor time is measured.",
        source="bounds",
        judge=_processor,
        kinds=("kubernetes",),
        elsewhere="The local backend does not bound a sandbox's share of the processor; it has a lower priority.",
    ),
    Row(
        id="runner-attacked",
        topic="Limits",
        promise="A program that attacks its sandbox's runner affects no other sandbox.",
        tried="Kill, trace, flood, fill and replace all that can be reached in one sandbox, and look at another one.",
        bound="Nine known attacks, two sandboxes. What becomes of the attacker's own sandbox does not count.",
        source="attacks",
        judge=_attacks,
    ),
)
