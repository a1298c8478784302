"""What the end of a run is called, from how its program ended and what it said."""

import signal
from typing import Any

import pytest

from sandpod_runner.ipc.jobs import Exit
from sandpod_runner.runs.request import Stop
from sandpod_runner.runs.run import describe_end, killed, out_of_memory, ran_out

MIB = 1024 * 1024
ABORTED = Exit(signal.SIGABRT)
FAILED = Exit(1 << 8)


@pytest.mark.parametrize(
    ("how", "stop", "expected"),
    [
        (Exit(0), None, {"outcome": "ok", "exit_code": 0, "signal": None}),
        (Exit(7 << 8), None, {"outcome": "error", "exit_code": 7, "signal": None}),
        (Exit(signal.SIGSEGV), None, {"outcome": "error", "exit_code": None, "signal": "SIGSEGV"}),
        (Exit(signal.SIGSEGV | 0x80), None, {"outcome": "error", "exit_code": None, "signal": "SIGSEGV"}),
        (Exit(40), None, {"outcome": "error", "exit_code": None, "signal": "SIG40"}),
        (Exit(0), Stop("timeout", "late"), {"outcome": "timeout", "exit_code": 0, "detail": "late"}),
        (Exit(0), Stop("cancelled"), {"outcome": "cancelled", "exit_code": 0, "detail": None}),
        (Exit(None), Stop("cancelled"), {"outcome": "cancelled", "exit_code": None, "signal": None}),
    ],
)
def test_end_has_exit_code_signal_and_reason(how: Exit, stop: Stop | None, expected: dict[str, Any]) -> None:
    end = describe_end(how, stop, None)
    assert {key: end[key] for key in expected} == expected


def test_end_that_nobody_saw_is_an_error_and_says_so() -> None:
    assert describe_end(Exit(None), None, None)["outcome"] == "error"
    assert "not known" in describe_end(Exit(None), None, None)["detail"]
    assert describe_end(Exit(None), None, "No process.")["detail"] == "No process."


def test_figures_are_milliseconds_and_bytes() -> None:
    end = describe_end(Exit(0, cpu=0.25, max_rss=5), None, None)
    assert (end["cpu_ms"], end["max_rss_bytes"]) == (250.0, 5)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Exit(signal.SIGKILL), True),
        (Exit(137 << 8), True),
        (Exit(signal.SIGTERM), False),
        (Exit(1 << 8), False),
        (Exit(None), False),
    ],
)
def test_killed_is_by_signal_or_as_a_shell_reports_it(how: Exit, expected: bool) -> None:  # noqa: FBT001
    assert killed(how) is expected


@pytest.mark.parametrize(
    ("language", "how", "words", "expected"),
    [
        ("javascript", ABORTED, b"\nFATAL ERROR: Reached heap limit - JavaScript heap out of memory\n 1: 0x\n", True),
        ("javascript", FAILED, b"    at x {\n  code: 'ERR_MEMORY_ALLOCATION_FAILED'\n}\n\nNode.js v24.19.0\n", True),
        ("javascript", FAILED, b"\nRangeError: Array buffer allocation failed\n    at new ArrayBuffer\n", True),
        ("javascript", ABORTED, b"assertion failed", False),
        ("python", FAILED, b"Traceback\n  x\nMemoryError\n", True),
        ("python", FAILED, b"x\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 TiB\n", True),
        ("python", FAILED, b"MemoryError\nValueError: x\n", False),
        ("python", FAILED, b"caught MemoryError: x\n", False),
        ("python", FAILED, b"", False),
        ("python", Exit(0), b"MemoryError\n", False),
        ("shell", FAILED, b"MemoryError\n", False),
    ],
)
def test_runtime_that_gave_up_for_want_of_memory_is_known_by_its_last_words(
    language: str,
    how: Exit,
    words: bytes,
    expected: bool,  # noqa: FBT001
) -> None:
    assert ran_out(language, how, words) is expected


def test_limit_is_named_in_words() -> None:
    assert out_of_memory(512 * MIB).detail == "It used more than the sandbox's 512 MiB of memory."
    assert out_of_memory(512 * MIB, ["idle", "busy", "idle", "lost"]).detail == (
        "It used more than the sandbox's 512 MiB of memory, "
        "of which idle contexts hold a part (2; restart_context ends one)."
    )
    assert out_of_memory(None).detail == "It asked for more memory than it can have."
