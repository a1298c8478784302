"""Times that come from a sandbox: programs set any, and a listing must survive them."""

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import Entry
from sandpod_gateway.runner.messages import Listing, checked
from sandpod_runner.protocol.frames import Frame


@pytest.mark.parametrize(
    ("mtime", "expected"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
        (253_402_300_800, None),
        (2**40, None),
        (2**63, None),
        (-(2**63), None),
        (1e300, None),
    ],
)
def test_time_of_a_file_is_shown_where_it_can_be(mtime: float, expected: str | None) -> None:
    entry = Entry.model_validate({"path": "a", "kind": "file", "mtime": mtime}).entry()
    assert entry.modified_at == expected


@pytest.mark.parametrize("started", [253_402_300_800, 2**40, float("nan"), float("inf"), -1])
def test_run_that_began_at_no_time_is_a_coded_error(started: float) -> None:
    run = {"run": "r", "language": "python", "state": "live", "started": started}
    frame = Frame({"runs": [run]})
    with pytest.raises(SandpodError) as error:
        checked(Listing, frame)
    assert error.value.code == ErrorCode.BACKEND_ERROR
