from typing import Any

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language
from sandpod_gateway.content import decode_base64
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.runs.request import RunRequest, check_run

LIMITS = RunLimits(stdin_bytes=10, max_run_timeout=60).model_copy(update={"code_bytes": 100})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"code": "x" * 101}, ErrorCode.CODE_TOO_LARGE),
        ({"code": "é" * 51}, ErrorCode.CODE_TOO_LARGE),
        ({"code": "1\0"}, ErrorCode.INVALID_CONTENT),
        ({"code": "'\ud800'"}, ErrorCode.INVALID_CONTENT),
        ({"stdin": "x" * 11}, ErrorCode.UPLOAD_TOO_LARGE),
        ({"stdin": "\udfff"}, ErrorCode.INVALID_CONTENT),
        ({"timeout": 0}, ErrorCode.INVALID_ARGUMENT),
        ({"timeout": -1}, ErrorCode.INVALID_ARGUMENT),
        ({"timeout": 61}, ErrorCode.INVALID_ARGUMENT),
        ({"timeout": float("nan")}, ErrorCode.INVALID_ARGUMENT),
        ({"args": ["a\0"]}, ErrorCode.INVALID_ARGUMENT),
        ({"args": ["x"] * 2000}, ErrorCode.INVALID_ARGUMENT),
        ({"env": {"A": "x" * 200_000}}, ErrorCode.INVALID_ARGUMENT),
        ({"env": {"A=B": "1"}}, ErrorCode.INVALID_ARGUMENT),
        ({"env": {"": "1"}}, ErrorCode.INVALID_ARGUMENT),
        ({"cwd": "x" * 5000}, ErrorCode.INVALID_PATH),
        ({"language": ""}, ErrorCode.UNSUPPORTED_LANGUAGE),
        ({"language": "Python"}, ErrorCode.UNSUPPORTED_LANGUAGE),
        ({"language": "ruby\n"}, ErrorCode.UNSUPPORTED_LANGUAGE),
        ({"language": "../ruby"}, ErrorCode.UNSUPPORTED_LANGUAGE),
        ({"language": "x" * 33}, ErrorCode.UNSUPPORTED_LANGUAGE),
    ],
)
def test_what_no_sandbox_should_be_bothered_with_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(SandpodError) as raised:
        check_run(RunRequest(**{"language": Language.PYTHON, "code": "1", **fields}), LIMITS)
    assert raised.value.code == code
    assert raised.value.next_step


def test_an_ordinary_run_passes() -> None:
    check_run(RunRequest(language=Language.SHELL, code="é" * 50, args=["a b"], env={"A": ""}, timeout=60), LIMITS)
    check_run(RunRequest(language="c++", code="1"), LIMITS)


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "a/" + "é" * 128, "\ud800"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(SandpodError):
        check_path(path)


@pytest.mark.parametrize("text", ["a*bc", "YWJj*ZGVm", "YWJ", "é", "YWJj\n"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(SandpodError) as raised:
        decode_base64(text)
    assert raised.value.code == ErrorCode.INVALID_CONTENT
