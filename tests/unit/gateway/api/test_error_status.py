"""HTTP statuses of the coded errors."""

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.http.negotiation import problem

SERVERS_OWN = {ErrorCode.BACKEND_ERROR, ErrorCode.EXECUTION_FAILED}


@pytest.mark.parametrize("code", ErrorCode)
def test_only_faults_of_the_server_are_500(code: ErrorCode) -> None:
    status = problem(SandpodError(code, "It failed.", next_step="Look.")).status_code
    assert 400 <= status < 600
    assert (status == 500) == (code in SERVERS_OWN)
    assert ErrorCode(code.value) is code
    assert str(code) == code.value


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.SESSION_BUSY, 409),
        (ErrorCode.FILE_EXISTS, 409),
        (ErrorCode.MAX_SESSIONS, 429),
        (ErrorCode.UNSCHEDULABLE, 503),
        (ErrorCode.SANDBOX_LOST, 410),
        (ErrorCode.QUOTA_EXCEEDED, 507),
    ],
)
def test_client_learns_whose_fault_it_is(code: ErrorCode, status: int) -> None:
    assert problem(SandpodError(code, "It failed.", next_step="Look.")).status_code == status
