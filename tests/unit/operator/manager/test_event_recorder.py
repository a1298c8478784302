import asyncio
import contextlib
from typing import Any

import pytest

from sandpod_kube.errors import ConflictError, UnreachableError
from sandpod_kube.resources import SANDBOXES
from sandpod_operator.manager.event_recorder import EventPoster, build_event
from sandpod_operator.metrics import Metrics
from sandpod_operator.model.actions import Emit
from support.operator.world import NOW, a_sandbox


def emit(message: str = "It is ready.") -> Emit:
    return Emit(SANDBOXES, a_sandbox().metadata, "Ready", message)


def test_event_is_exactly_this() -> None:
    event = build_event(emit(), NOW)
    assert event.pop("metadata") == {"name": "box-25d9c348caca1099", "namespace": "boxes"}
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "sandpod.dev/v1alpha1",
            "kind": "Sandbox",
            "namespace": "boxes",
            "name": "box",
            "uid": "uid-box",
        },
        "type": "Normal",
        "reason": "Ready",
        "message": "It is ready.",
        "firstTimestamp": "2026-03-01T12:00:00Z",
        "lastTimestamp": "2026-03-01T12:00:00Z",
        "count": 1,
        "source": {"component": "sandpod-operator"},
        "reportingComponent": "sandpod-operator",
        "reportingInstance": "sandpod-operator",
    }


def test_same_words_have_the_same_name_and_other_words_another() -> None:
    first, again, other = (build_event(emit(m), NOW)["metadata"]["name"] for m in ("a", "a", "b"))
    assert first == again != other


async def test_events_are_posted_in_order_and_one_that_is_there_already_or_fails_stops_nothing() -> None:
    posted: list[str] = []
    all_there = asyncio.Event()

    async def post(event: dict[str, Any]) -> None:
        posted.append(event["message"])
        if len(posted) == 3:
            all_there.set()
        if event["message"] == "a":
            raise ConflictError(409, "AlreadyExists", "it is there")
        if event["message"] == "b":
            raise UnreachableError("no answer")

    metrics = Metrics()
    poster = EventPoster(post, metrics, lambda: NOW)
    for message in ("a", "b", "c"):
        poster.emit(emit(message))
    task = asyncio.create_task(poster.run())
    async with asyncio.timeout(60):
        await all_there.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert posted == ["a", "b", "c"]
    assert metrics.registry.get_sample_value("sandpod_operator_events_dropped_total") == 1


def test_flood_of_events_is_dropped_and_counted() -> None:
    async def never(_: dict[str, Any]) -> None:
        raise AssertionError

    metrics = Metrics()
    poster = EventPoster(never, metrics, lambda: NOW)
    for number in range(600):
        poster.emit(emit(str(number)))
    assert metrics.registry.get_sample_value("sandpod_operator_events_dropped_total") == 100


async def test_events_that_are_there_already_are_posted_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    rested = asyncio.Event()

    async def post(_: dict[str, Any]) -> None:
        raise ConflictError(409, "AlreadyExists", "it is there")

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        rested.set()

    poster = EventPoster(post, Metrics(), lambda: NOW)
    poster.emit(emit())
    monkeypatch.setattr(asyncio, "sleep", rest)
    task = asyncio.create_task(poster.run())
    async with asyncio.timeout(60):
        await rested.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert rests == [0.05]
