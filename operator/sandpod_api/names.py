"""Every name that two parts must spell alike: group, kinds, labels, annotations, children."""

import hashlib
import re
from typing import Final

GROUP: Final = "sandpod.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

SANDBOXES: Final = "sandboxes"
TEMPLATES: Final = "sandboxtemplates"
POOLS: Final = "sandboxpools"
TENANTS: Final = "sandboxtenants"

# Labels, on Sandboxes and on the pods made for them.
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "sandpod"
LABEL_SANDBOX: Final = "sandpod.dev/sandbox"
LABEL_TEMPLATE: Final = "sandpod.dev/template"
LABEL_POOL: Final = "sandpod.dev/pool"
LABEL_STATE: Final = "sandpod.dev/state"
LABEL_OWNER: Final = "sandpod.dev/owner"
LABEL_SESSION: Final = "sandpod.dev/session"
LABEL_NETWORK: Final = "sandpod.dev/network"

# On the namespace of a tenant that was made on first use: whose it is, and the namespace of the release that made it.
# An admission policy of the chart keeps the operator from giving them to any other, and from taking them away.
LABEL_TENANT: Final = "sandpod.dev/tenant"
LABEL_RELEASE: Final = "sandpod.dev/release-namespace"
# The value of LABEL_MANAGED_BY on what such a namespace got with it: what the values no longer have is found by it.
MANAGED_BY_OPERATOR: Final = "sandpod-operator"

# The two values of LABEL_STATE. The claim patch turns one into the other.
STATE_WARM: Final = "warm"
STATE_CLAIMED: Final = "claimed"

# When it was last used (RFC 3339): what the gateway writes most often to a claimed Sandbox.
ANNOTATION_LAST_ACTIVITY: Final = "sandpod.dev/last-activity"
# Unique for each write that claims: two callers of one owner may write the same claim in the same second.
ANNOTATION_CLAIM_ID: Final = "sandpod.dev/claim-id"
# The span of that claim, as W3C's `traceparent`, where the gateway records traces. What reads it has to check its form.
ANNOTATION_TRACEPARENT: Final = "sandpod.dev/traceparent"
# Until when (RFC 3339) a background run may go on in it: until then it is not idle, whether or not a gateway is there.
ANNOTATION_BUSY_UNTIL: Final = "sandpod.dev/busy-until"
# "true" on a Sandbox whose claim came with secrets: their values are in the Secret of `session_secret_name`.
ANNOTATION_SECRETS: Final = "sandpod.dev/session-secrets"
# On a Secret: users whose claims may refer to it, with commas between them; * for everybody.
ANNOTATION_USERS: Final = "sandpod.dev/users"
# What its claimer noted of it: a JSON object of texts, which means nothing here.
ANNOTATION_METADATA: Final = "sandpod.dev/metadata"
# The hash of the template's spec that a warm Sandbox was made from: others are replaced.
ANNOTATION_TEMPLATE_HASH: Final = "sandpod.dev/template-hash"
# On a pod that was made ahead with lower requests: those that it gets at its claim, a JSON object.
ANNOTATION_CLAIMED_REQUESTS: Final = "sandpod.dev/claimed-requests"
# "true" on a RuntimeClass: its pods can have a user namespace of their own.
ANNOTATION_USER_NAMESPACES: Final = "sandpod.dev/user-namespaces"

# The operator's own objects: which replica is active, and what shows it that watch events arrive.
LEASE_LEADER: Final = "sandpod-operator"
LEASE_HEARTBEAT: Final = "sandpod-operator-heartbeat"

# Inside the pod.
CONTAINER: Final = "sandbox"
RUNNER_CONTAINER: Final = "runner"
# Runs first where a RuntimeClass promises a separate kernel, and reports in its termination message which one it sees.
KERNEL_CONTAINER: Final = "kernel"
# The runner and its own Python: in images that have it a link to theirs, in others a folder that the operator brings.
RUNNER_HOME: Final = "/opt/sandpod/runner"
RUNNER_COMMAND: Final = (f"{RUNNER_HOME}/bin/python3", "-I", "-m", "sandpod_runner")
# The same for what comes into the pod by exec, as the programs' user: an interpreter that this user can execute and not
# read. Linux keeps such a process from all others of its user, so no program opens its streams, from its start on.
SHIELDED_COMMAND: Final = (f"{RUNNER_HOME}/bin/shielded-python3", "-I", "-m", "sandpod_runner")
# Where the runner's image holds that folder ready to be copied, and the most that it takes.
PORTABLE_RUNNER: Final = "/opt/sandpod/portable"
PORTABLE_SIZE: Final = "128Mi"
WORKSPACE: Final = "/workspace"
# Where added packages lie, in a volume of their own; the runner makes ~/.local a link to it.
PACKAGES: Final = "/packages"
# host:port pairs (split at the last colon), separated by commas, that the runner must not be able to reach, when it
# starts and later. If it reaches one it ends with EXIT_NOT_ISOLATED and a termination message
# `NetworkOpen: reached host:port`.
ENV_PROBES: Final = "SANDPOD_PROBES"
EXIT_NOT_ISOLATED: Final = 78
# Seconds between two later probes, after which it ends in the same way.
ENV_PROBE_INTERVAL: Final = "SANDPOD_PROBE_INTERVAL"
# 1 where the runner serves though it reaches one.
ENV_ALLOW_OPEN_NETWORK: Final = "SANDPOD_ALLOW_OPEN_NETWORK"
# 1 where the pod begins without a network: connections to elsewhere are refused at once.
ENV_CLOSED_NETWORK: Final = "SANDPOD_CLOSED_NETWORK"
# Modules, separated by commas, that the Python zygote imports before the first run.
ENV_PREIMPORT: Final = "SANDPOD_PREIMPORT"
# What the image's own Python is called, where the runner runs on another one.
ENV_PYTHON: Final = "SANDPOD_PYTHON"
# The template's languages, as JSON: a list of {name, command, extension}.
ENV_LANGUAGES: Final = "SANDPOD_LANGUAGES"
# Limits that the runner sets. Processes only where the pod has its own user namespace: without one the kernel counts
# all processes of that uid on the node.
ENV_PROCESSES: Final = "SANDPOD_PROCESSES"
ENV_OPEN_FILES: Final = "SANDPOD_OPEN_FILES"
ENV_RUN_TIMEOUT: Final = "SANDPOD_RUN_TIMEOUT"
ENV_OUTPUT_BYTES: Final = "SANDPOD_OUTPUT_BYTES"
ENV_WORKSPACE_BYTES: Final = "SANDPOD_WORKSPACE_BYTES"
ENV_PACKAGES: Final = "SANDPOD_PACKAGES"
ENV_PACKAGES_BYTES: Final = "SANDPOD_PACKAGES_BYTES"
# Folders, separated by commas, whose files are in the pod's memory: under some runtimes the mounts don't show it.
ENV_IN_MEMORY: Final = "SANDPOD_IN_MEMORY"
# The pod's memory limit, bytes: under some runtimes the cgroup shows the node's memory instead.
ENV_MEMORY_LIMIT: Final = "SANDPOD_MEMORY_LIMIT"

# The network profile that every Sandbox has unless it names another.
NETWORK_NONE: Final = "none"
POLICY_DENY_ALL: Final = "sandpod-deny-all"

MAX_LABEL: Final = 63  # Kubernetes' limit for label values and DNS labels
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


def label_value(text: str) -> str:
    """Return a label value that stands for any text: hashed, so that it fits and says nothing of a person."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def child_name(parent: str, suffix: str) -> str:
    """Return `parent-suffix`, shortened with a hash where it would pass 63 characters."""
    name = f"{parent}-{suffix}"
    if len(name) <= MAX_LABEL:
        return name
    digest = hashlib.sha256(parent.encode()).hexdigest()[:8]
    keep = MAX_LABEL - len(suffix) - len(digest) - 2
    return f"{parent[:keep].rstrip('-.')}-{digest}-{suffix}"


def volume_claim_name(sandbox: str, uid: str) -> str:
    """Return the name of a persistent workspace's volume claim.

    The uid is in it, so that a Sandbox never takes over the claim of an earlier one of its name, nor anybody else's.
    """
    return child_name(sandbox, f"workspace-{uid[:8]}")


def session_secret_name(sandbox: str, uid: str) -> str:
    """Return the name of the Secret with what was given with a sandbox; as above, no other Sandbox ever has it."""
    return child_name(sandbox, f"secrets-{uid[:8]}")


def network_policy_name(template: str, profile: str) -> str:
    """Return the name of the NetworkPolicy that opens a template's egress profile."""
    return child_name(f"sandpod-{template}", profile)


def is_dns_label(text: str) -> bool:
    """Return whether Kubernetes takes the text as the name of a Sandbox, template or profile."""
    return re.fullmatch(DNS_LABEL, text) is not None
