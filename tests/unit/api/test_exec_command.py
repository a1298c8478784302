import pytest

from sandpod_api.conditions import Condition
from sandpod_api.names import RUNNER_COMMAND, SHIELDED_COMMAND
from sandpod_api.types import exec_command
from support.operator.world import a_sandbox


@pytest.mark.parametrize(("status", "command"), [("True", RUNNER_COMMAND), ("False", SHIELDED_COMMAND)])
def test_only_a_kernel_of_its_own_takes_the_interpreter_that_programs_can_read(
    status: str, command: tuple[str, ...]
) -> None:
    sandbox = a_sandbox()
    time = "2026-01-01T00:00:00Z"
    isolated = Condition.model_validate(
        {"type": "KernelIsolated", "status": status, "reason": "KernelOwn", "message": "", "lastTransitionTime": time}
    )
    reported = sandbox.model_copy(update={"status": sandbox.status.model_copy(update={"conditions": [isolated]})})
    assert exec_command(reported) == command


def test_a_sandbox_that_is_not_known_gets_the_shielded_one() -> None:
    assert exec_command(None) == exec_command(a_sandbox()) == SHIELDED_COMMAND
