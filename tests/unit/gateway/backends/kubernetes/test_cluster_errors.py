import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.kubernetes.cluster import translated
from sandpod_gateway.errors import SandpodError
from sandpod_kube.errors import ClusterError, RefusedError, UnreachableError

INSIDE = 'pods is forbidden: User "system:serviceaccount:sandpod:gateway" at 10.0.0.1'


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreachableError(INSIDE), ErrorCode.BACKEND_UNAVAILABLE),
        (TimeoutError(), ErrorCode.BACKEND_UNAVAILABLE),
        (RefusedError(401, "Unauthorized", INSIDE), ErrorCode.BACKEND_UNAVAILABLE),
        (RefusedError(403, "Forbidden", INSIDE), ErrorCode.BACKEND_UNAVAILABLE),
        (RefusedError(403, "Forbidden", f"exceeded quota: {INSIDE}"), ErrorCode.QUOTA_EXCEEDED),
        (RefusedError(422, "Invalid", INSIDE), ErrorCode.BACKEND_ERROR),
        (RefusedError(429, "TooManyRequests", INSIDE), ErrorCode.BACKEND_UNAVAILABLE),
        (RefusedError(500, "InternalError", INSIDE), ErrorCode.BACKEND_UNAVAILABLE),
    ],
)
def test_a_caller_is_told_a_code_and_nothing_of_the_clusters_inside(
    error: ClusterError | TimeoutError, code: ErrorCode
) -> None:
    with pytest.raises(SandpodError) as refused, translated("a sandbox was claimed"):
        raise error
    told = refused.value
    assert told.code == code
    assert "a sandbox was claimed" in told.message or code == ErrorCode.QUOTA_EXCEEDED
    assert INSIDE not in f"{told.message} {told.cause} {told.next_step}"


def test_a_message_of_the_api_server_is_bounded() -> None:
    assert len(str(RefusedError(500, "", "x" * 10_000))) == 500
    assert str(RefusedError(404)) == "HTTP status 404"
