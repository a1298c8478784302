"""Where code can write, and what of the node's files it has."""

from typing import Final

from sandpod_gateway.verify.model import Facts, Row, Verdict, not_applicable, verdict

# What the container runtime itself mounts from the node, one small file each.
_BY_RUNTIME: Final = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log")
_OWN: Final = ("/workspace", "/tmp", "/dev/shm", "/packages", "/opt/sandpod/runner")  # noqa: S108 - paths inside
_DISKS: Final = ("ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs", "nfs", "nfs4", "cifs", "9p", "virtiofs", "fuse.lxcfs")
# A queue of messages, which belongs to the sandbox's own namespace; it holds no file.
_HARMLESS: Final = ("/dev/mqueue",)


def _read_only(facts: Facts) -> Verdict:
    wrong = [f"{path} can be written to" for path in facts["writable"] if path not in _HARMLESS]
    wrong += [f"{path} can be changed" for path, answer in facts["files"].items() if answer == "done"]
    wrong += [] if facts["remount"] else ["the root file system is not mounted read-only"]
    part = "" if facts["whole"] else " (not all of them: the time was over)"
    return verdict(wrong, f"{facts['folders']} folders tried{part}, none can be written to but the sandbox's own")


def _host_paths(facts: Facts) -> Verdict:
    wrong = [f"{path} of the node is there" for path in facts["node"]]
    for mount in facts["mounts"]:
        known = mount["at"] in _BY_RUNTIME or mount["at"].startswith(_OWN)
        if mount["kind"] in _DISKS and not known and mount["root"] != "/" and "rw" in mount["options"].split(","):
            wrong.append(f"{mount['at']} is {mount['root']} of {mount['source']}")
    return verdict(wrong, f"{len(facts['mounts'])} mounts, none of the node's folders among them")


def _sized(facts: Facts) -> Verdict:
    sizes = {place: size for place, size in facts["sizes"].items() if place in {"/tmp", "/dev/shm"}}  # noqa: S108 - paths inside
    most = 16 * 2**30
    wrong = [f"{place} holds {size >> 20} MiB" for place, size in sizes.items() if not 0 < size <= most]
    return verdict(wrong, ", ".join(f"{place} holds {size >> 20} MiB" for place, size in sizes.items()))


def _links(facts: Facts) -> Verdict:
    wrong = [f"{what} gave something" for what, answer in facts["answers"].items() if answer == "done"]
    if not any(answer == "done" for answer in facts["made"].values()):
        return not_applicable("No link could be made.")
    return verdict(wrong, f"{len(facts['answers'])} requests refused, or told of the link itself")


def _host(facts: Facts) -> Verdict:
    wrong = [f"{path} is seen" for path in facts["paths"]]
    wrong += ["a variable of the server's is set"] if facts["variable"] else []
    wrong += [f"process {pid} shows the server's variables" for pid in facts["variables"]]
    wrong += ["the server's process is seen"] if facts["process"] == "done" else []
    return verdict(wrong, f"no file, variable or process of the server; {facts['processes']} processes in all")


def _apart(facts: Facts) -> Verdict:
    return verdict([f"{path} is another sandbox's" for path in facts["seen"]], f"none of {len(facts['looked'])} marks")


ROWS: Final = (
    Row(
        id="root-read-only",
        topic="Files",
        promise="The system is read-only: code can write to its workspace, /tmp, /dev/shm and packages alone.",
        tried="Make a file in every folder outside of these; open system files for writing.",
        bound="Folders that are reached in ten seconds, at most 20,000. /proc and /sys have rows of their own.",
        source="files",
        judge=_read_only,
    ),
    Row(
        id="host-paths-none",
        topic="Files",
        promise="No folder of the node is mounted (hostPath).",
        tried="Look for folders that nodes have, and for mounts of a part of a disk that can be written to.",
        bound="Known folders and file systems. A whole disk that is mounted for a workspace is not told from a volume.",
        source="files",
        judge=_host_paths,
        kinds=("kubernetes",),
        elsewhere="Local sandboxes show the machine's system folders, read-only; row host-invisible is about the rest.",
    ),
    Row(
        id="folders-sized",
        topic="Files",
        promise="Folders in memory, /tmp and /dev/shm, are file systems of their own with a size.",
        tried="Ask their file systems for their size.",
        bound="Sizes up to 16 GiB: a folder of a node's small disk would pass. Row disk-bounded fills them.",
        source="files",
        judge=_sized,
    ),
    Row(
        id="links-stay-inside",
        topic="Files",
        promise="No link in the workspace leads the tools for files out of it.",
        tried="Make links to /, /etc/passwd, /proc/1/environ and upwards, and read, list and stat them by the runner.",
        bound="Links that stand still; the tests change them while they are read.",
        source="links",
        judge=_links,
    ),
    Row(
        id="host-invisible",
        topic="Files",
        promise="Files, variables and processes of the machine and of the server can't be seen.",
        tried="Look for a new file, the user's own folders, a variable and the process of this very command.",
        bound="These things and no others. System folders and Python are shown on purpose, read-only.",
        source="host",
        judge=_host,
        kinds=("local",),
        elsewhere="Pods have their own file system; rows host-paths-none and processes-own are about the node's.",
    ),
    Row(
        id="sandboxes-share-no-files",
        topic="Files",
        promise="Sandboxes share no files.",
        tried="Leave a file in each writable folder of one sandbox and look for it in another.",
        bound="Two sandboxes, at one time; on a cluster they may be on different nodes.",
        source="apart",
        judge=_apart,
    ),
)
