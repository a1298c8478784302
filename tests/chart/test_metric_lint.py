"""Prometheus' own tool finds nothing wrong with what gateway and operator export."""

import subprocess

import pytest
from prometheus_client import generate_latest

import metric_table


@pytest.mark.parametrize("program", ["gateway", "operator"])
def test_names_units_and_types_are_as_prometheus_advises(program: str) -> None:
    text = generate_latest(metric_table.registry_of(program))
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
