"""What callers put into a log line stays in that line."""

import json
import logging
from collections.abc import Iterator

import pytest

from sandpod_api import log_lines

FORGED = "a\n12:00:00 ERROR   sandpod: forged\r\x1b[2J\x85\u2028end"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_message_is_one_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("console", "info")
    logging.getLogger("test").info("session %s", FORGED)
    text = capsys.readouterr().err
    assert text.endswith("\n")
    assert text[:-1].isprintable()
    assert "a\\x0a12:00:00 ERROR" in text


def test_an_exception_is_set_in_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("console", "info")
    logging.getLogger("test").error("failed", exc_info=ValueError(FORGED))
    first, *rest = capsys.readouterr().err.split("\n")[:-1]
    assert first.endswith("test: failed")
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_a_message_is_one_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("json", "info")
    logging.getLogger("test").info("session %s", FORGED)
    [line] = capsys.readouterr().err.rstrip("\n").split("\n")
    assert json.loads(line)["message"] == f"session {FORGED}"


def test_an_object_has_time_level_message_and_exception(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("json", "info")
    logging.getLogger("test").error("said %s", "é", exc_info=ValueError("broken"))
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "test", "said é")
    assert "ValueError: broken" in entry["exception"]
    assert entry["time"].endswith("+00:00")
