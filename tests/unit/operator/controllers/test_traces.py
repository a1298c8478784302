"""What the operator's spans and log lines say of its work on an object, and which work has a span at all."""

import json
import logging
from collections.abc import Iterator

import pytest

from sandpod_api import names
from sandpod_kube.errors import DeniedError, UnreachableError
from sandpod_kube.resources import PODS, SANDBOXES, TEMPLATES, Resource
from sandpod_telemetry import log_context
from support.operator.world import SPACE, World, sandbox_object, template_object
from support.traces import CLIENT, TRACEPARENT, Spans, recording

RECONCILE = "reconcile Sandbox"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as seen:
        yield seen


def claimed(name: str, traceparent: str) -> dict[str, object]:
    made = sandbox_object(name, claimed=1)
    made["metadata"]["annotations"] = {names.ANNOTATION_TRACEPARENT: traceparent}
    return made


async def test_work_that_changes_something_is_a_span_that_is_linked_to_the_claim(spans: Spans) -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())
    await world.given(SANDBOXES, claimed("box", TRACEPARENT))
    await world.given(SANDBOXES, claimed("forged", "not a traceparent " * 10_000))
    await world.start_all()
    of = {
        name: [each for each in spans.named(RECONCILE) if each.of("k8s.pod.name") == (name,)]
        for name in ("box", "forged")
    }
    assert of["box"]
    assert {each.links for each in of["box"]} == {(CLIENT,)}
    assert {each.links for each in of["forged"]} == {()}
    assert {each.parent for each in spans.named(RECONCILE)} == {None}
    first = of["box"][0]
    assert first.of("k8s.namespace.name", "sandpod.sandbox", "sandpod.kind") == (SPACE, "box", "Sandbox")
    assert first.attributes["sandpod.reconcile.changes"] >= 1
    before = len(spans.all())
    await world.dispatcher.resync()
    await world.settle()
    assert len(spans.all()) == before, "nothing was to be done"


async def test_work_that_fails_is_a_span_and_its_log_lines_name_it(
    spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())

    def refuse(resource: Resource) -> None:
        if resource is PODS:
            raise UnreachableError("no answer from secret-host")

    world.api.refuse = refuse
    facts: list[dict[str, str]] = []

    def look(_: logging.LogRecord) -> bool:
        facts.append(log_context.current())
        return True

    caplog.handler.addFilter(look)
    with caplog.at_level(logging.WARNING):
        await world.given(SANDBOXES, claimed("box", TRACEPARENT))
    failed = [each for each in spans.named(RECONCILE) if each.failed]
    assert [each.attributes["error.type"] for each in failed] == ["UnreachableError"]
    assert "secret-host" not in json.dumps([each.text for each in spans.all()])
    known = {"owner": "alice", "namespace": SPACE, "sandbox": "box"}
    assert {**known, "trace_id": failed[0].trace, "span_id": failed[0].id} in facts


async def test_a_refused_pod_is_no_failure_of_the_operator(spans: Spans) -> None:
    world = World()
    world.close_namespace()
    await world.given(TEMPLATES, template_object())

    def refuse(resource: Resource) -> None:
        if resource is PODS:
            raise DeniedError(403, "Forbidden", "the policy says no")

    world.api.refuse = refuse
    await world.given(SANDBOXES, claimed("box", TRACEPARENT))
    assert spans.named(RECONCILE)
    assert not any(each.failed for each in spans.named(RECONCILE))
