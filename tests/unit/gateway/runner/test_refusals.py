"""What a runner refuses reaches the caller with the runner's code and a step of its own."""

from typing import get_args

import pytest

from sandpod_gateway.runner.messages import refusal
from sandpod_runner.protocol.errors import Code
from sandpod_runner.protocol.frames import Frame


@pytest.mark.parametrize("code", [code for code in get_args(Code) if code != "backend_error"])
def test_each_code_of_the_runner_is_passed_on_with_a_step(code: str) -> None:
    error = refusal(Frame({"t": "error", "code": code, "message": "No."}, b""), "read")
    assert (error.code, error.message) == (code, "No.")
    assert error.next_step != "Try again with another sandbox."
