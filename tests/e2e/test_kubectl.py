"""What an administrator sees with kubectl, also of a sandbox that can't start."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import yaml

from sandpod_api.base import rfc3339
from support.cluster.callers import Session
from support.cluster.cluster import Cluster, ClusterError, until

ORPHAN = """
apiVersion: sandpod.dev/v1alpha1
kind: Sandbox
metadata: {name: cannot-start}
spec:
  templateRef: {name: missing-image}
  claim: {owner: somebody, time: "%s"}
"""


async def describe_until(cluster: Cluster, name: str, *words: str) -> str:
    """Return what kubectl describe says once it has all the words."""

    async def look() -> str:
        text = await cluster.kubectl("describe", "sbx", name, "-n", cluster.sandboxes)
        return text if all(word in text for word in words) else ""

    return await until(f"{words} in kubectl describe sbx {name}", look, within=60)


async def test_get_shows_template_phase_owner_age_and_expiry(cluster: Cluster, sandbox: str) -> None:
    table = await cluster.kubectl("get", "sbx", sandbox, "-n", cluster.sandboxes)
    head, row = table.strip().splitlines()
    assert {"NAME", "TEMPLATE", "PHASE", "OWNER", "AGE", "EXPIRES"} <= set(head.split())
    assert {sandbox, "default", "Ready"} <= set(row.split())
    assert "alice" in row


async def test_describe_tells_the_story_of_a_running_sandbox(cluster: Cluster, sandbox: str) -> None:
    text = await describe_until(cluster, sandbox, "Events:", "PodCreated", "PodScheduled", "NetworkIsolated", "Ready")
    assert "user:alice" in text


@pytest.fixture
async def cannot_start(cluster: Cluster) -> AsyncIterator[str]:
    await cluster.kubectl("apply", "-n", cluster.sandboxes, "-f", "-", stdin=ORPHAN % rfc3339(datetime.now(UTC)))
    yield "cannot-start"
    await cluster.kubectl("delete", "sbx", "cannot-start", "-n", cluster.sandboxes)


async def test_describe_says_that_the_image_does_not_exist(cluster: Cluster, cannot_start: str) -> None:
    text = await describe_until(cluster, cannot_start, "ImagePullFailed", "Events:")
    assert "registry.invalid/nothing/here:none" in text
    wide = await cluster.kubectl("get", "sbx", cannot_start, "-n", cluster.sandboxes, "-o", "wide")
    assert "ImagePullFailed" in wide


@pytest.mark.promise("start-failures")
async def test_caller_is_told_why_a_sandbox_cannot_start_and_nothing_stays(session: Session, cluster: Cluster) -> None:
    before = await cluster.claimed("alice")
    reasons = {"missing-image": "image_pull_failed", "too-large": "unschedulable"}
    replies = await asyncio.gather(*(session.call("create_sandbox", template=template) for template in reasons))
    assert [reply.error for reply in replies] == list(reasons.values())
    assert all(reply["next"] for reply in replies)
    assert await cluster.claimed("alice") == before


async def test_malformed_sandbox_is_refused_with_a_sentence(cluster: Cluster) -> None:
    bad = yaml.safe_load(ORPHAN % rfc3339(datetime.now(UTC)))
    bad["spec"]["lifetime"] = {"ttl": 10, "idleTimeout": 20}
    with pytest.raises(ClusterError, match="idleTimeout can't be longer than ttl"):
        await cluster.kubectl("create", "-n", cluster.sandboxes, "-f", "-", stdin=json.dumps(bad))
