"""The command by which a sandbox's runner is reached by exec."""

from sandpod_api.conditions import ConditionType, is_true
from sandpod_api.names import RUNNER_COMMAND, SHIELDED_COMMAND
from sandpod_api.types import Sandbox


def exec_command(sandbox: Sandbox | None) -> tuple[str, ...]:
    """Return the interpreter and module to run in the pod.

    gVisor can't start a program that its user may not read, so a sandbox with a kernel of its own gets the readable
    interpreter: programs there are apart from the node, and from each other as that kernel keeps them. One that is not
    known counts as one on the node's kernel.
    """
    apart = sandbox is not None and is_true(sandbox.status.conditions, ConditionType.KERNEL_ISOLATED)
    return RUNNER_COMMAND if apart else SHIELDED_COMMAND
