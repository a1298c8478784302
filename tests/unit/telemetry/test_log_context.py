"""What log lines say of the work during which they are logged."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from sandpod_api import log_lines
from sandpod_telemetry import log_context, tracing
from support.traces import recording


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_lines_name_owner_sandbox_run_and_span(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("json", "info", log_context.current)
    log = logging.getLogger("test")

    async def later(begun: asyncio.Event, known: asyncio.Event) -> None:
        begun.set()
        await known.wait()
        log.info("in a task")

    log_context.note(owner="nobody's")
    log.info("outside")
    with recording() as spans, log_context.bound(owner="user:ann", sandbox=None), tracing.span("work"):
        begun, known = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(later(begun, known))
        await begun.wait()
        log_context.note(sandbox="box", run="r" * 1000, owner=None)
        known.set()
        await task
        with log_context.bound(owner="user:bob"):
            log.info("another's")
    log.info("outside again")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    facts = [{k: v for k, v in line.items() if k not in {"time", "level", "logger", "message"}} for line in lines]
    span = spans.one("work")
    ids = {"trace_id": span.trace, "span_id": span.id}
    assert facts == [
        {},
        {**ids, "owner": "user:ann", "sandbox": "box", "run": "r" * log_context.MAX_TEXT},
        {**ids, "owner": "user:bob"},
        {},
    ]
