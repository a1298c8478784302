import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandpod_api.base import rfc3339
from sandpod_api.fields import QUANTITY
from sandpod_api.templates import Resources
from sandpod_api.types import (
    Lifetime,
    NetworkProfile,
    Sandbox,
    SandboxPool,
    SandboxTemplate,
    Workspace,
    parse_quantity,
)

UNITS = {"m": 0.001, "": 1, "k": 10**3, "Ki": 2**10, "M": 10**6, "Mi": 2**20, "G": 10**9, "Gi": 2**30, "T": 10**12}


@given(number=st.integers(0, 10**6), unit=st.sampled_from(sorted(UNITS)))
def test_quantity_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_quantity(f"{number}{unit}") == pytest.approx(number * UNITS[unit])


@given(st.text(max_size=12))
def test_quantity_is_read_exactly_where_the_api_server_takes_it(text: str) -> None:
    # The API server's pattern is RE2, where $ is the end of the text and digits are ASCII.
    taken = re.fullmatch(QUANTITY.strip("^$"), text, re.ASCII) is not None
    try:
        parse_quantity(text)
    except ValueError:
        assert not taken
    else:
        assert taken


@pytest.mark.parametrize("text", ["", "1.5.2", "-1", "1 Gi", "Gi", "1Gb", "\u0661Gi", "1Gi\n", "1e3", ".5"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity such as"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (Workspace, {"size": "lots"}),
        (Workspace, {"size": "1Gi", "medium": "Tape"}),
        (Resources, {"cpu": "many"}),
        (Lifetime, {"ttl": 0}),
        (Lifetime, {"ttl": 604801}),
        (NetworkProfile, {"name": "Not A Name"}),
        (NetworkProfile, {"name": "web", "egress": [{"cidr": "10.0.0.0/8", "ports": [0]}]}),
    ],
)
def test_value_out_of_bounds_is_refused(model: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


def test_unknown_field_of_a_spec_is_refused_and_of_a_status_ignored() -> None:
    spec = {"templateRef": {"name": "python"}}
    with pytest.raises(ValidationError, match="image"):
        Sandbox.model_validate({"spec": {**spec, "image": "x"}})
    read = Sandbox.model_validate({"spec": spec, "status": {"phase": "Warm", "later": 1}, "kind": "Sandbox"})
    assert read.status.phase == "Warm"


def test_wire_form_is_camel_case_without_what_is_none_and_reads_back() -> None:
    template = SandboxTemplate.model_validate({"spec": {"image": "x", "imagePullSecrets": ["a"], "hostUsers": False}})
    wire = template.spec.to_wire()
    assert wire["imagePullSecrets"] == ["a"]
    assert wire["hostUsers"] is False
    assert "runtimeClassName" not in wire
    assert SandboxTemplate.model_validate({"spec": wire}) == template


def test_times_on_the_wire_are_utc_in_whole_seconds() -> None:
    berlin = datetime(2026, 3, 1, 13, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=1)))
    assert rfc3339(berlin) == "2026-03-01T12:00:00Z"
    claim = {"owner": "alice", "time": "2026-03-01T13:00:00+01:00"}
    sandbox = Sandbox.model_validate({"spec": {"templateRef": {"name": "python"}, "claim": claim}})
    assert sandbox.spec.claim is not None
    assert sandbox.spec.claim.time == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert sandbox.spec.to_wire()["claim"] == {"owner": "alice", "session": "", "time": "2026-03-01T12:00:00Z"}


def test_time_without_a_zone_is_refused() -> None:
    claim = {"owner": "alice", "time": "2026-03-01T13:00:00"}
    with pytest.raises(ValidationError, match="timezone"):
        Sandbox.model_validate({"spec": {"templateRef": {"name": "python"}, "claim": claim}})


def test_pool_has_bounds_and_defaults() -> None:
    pool = SandboxPool.model_validate({"spec": {"templateRef": {"name": "python"}}})
    assert (pool.spec.replicas, pool.spec.max_age, pool.spec.update_strategy.max_surge) == (1, 86400, 1)
    with pytest.raises(ValidationError):
        SandboxPool.model_validate({"spec": {"templateRef": {"name": "python"}, "replicas": -1}})
