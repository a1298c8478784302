import json
from typing import Any

import pytest

from sandpod_gateway.backends.kubernetes.streams.exec_stream import ExecEnd, parse_status, printable


def failure(**fields: Any) -> bytes:
    return json.dumps({"status": "Failure", **fields}).encode()


EXIT_42 = failure(
    message="command terminated with non-zero exit code",
    reason="NonZeroExitCode",
    details={"causes": [{"reason": "ExitCode", "message": "42"}]},
)


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (b'{"status":"Success"}', ExecEnd(0, "")),
        (EXIT_42, ExecEnd(42, "command terminated with non-zero exit code")),
        (failure(message="no such container", reason="InternalError"), ExecEnd(None, "no such container")),
        (failure(details=None), ExecEnd(None, "")),
    ],
)
def test_a_status_tells_the_exit_code(raw: bytes, end: ExecEnd) -> None:
    assert parse_status(raw) == end


@pytest.mark.promise("end-known")
@pytest.mark.parametrize(
    "raw",
    [b"", b"0", b"[]", b"null", b'"Success"', b"{}", b"\xff", failure(details={"causes": ["x"]}), failure(details=7)],
)
def test_a_status_that_makes_no_sense_is_no_success(raw: bytes) -> None:
    assert parse_status(raw).exit_code is None


def test_text_for_a_log_has_one_line_and_no_terminal_codes() -> None:
    assert printable("a\x1b[31m\nb\u202ec\x00") == "a [31m b c"
