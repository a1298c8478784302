"""What `kubectl sandpod` decides before it asks kubectl for anything."""

import argparse
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpod_api.fields import MAX_LIFETIME
from sandpod_api.types import Sandbox
from sandpod_kubectl.plugin import PluginError, longer_ttl, main, seconds_of

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def sandbox(*, ttl: int = 600, age: int | None = 100) -> Sandbox:
    spec: dict[str, Any] = {"templateRef": {"name": "python"}, "lifetime": {"ttl": ttl, "idleTimeout": ttl}}
    if age is not None:
        spec["claim"] = {"owner": "alice", "time": NOW - timedelta(seconds=age)}
    metadata = {"name": "a", "namespace": "there", "uid": "1", "resourceVersion": "1", "creationTimestamp": NOW}
    return Sandbox.model_validate({"metadata": metadata, "spec": spec})


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400)])
def test_durations(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1h", "1.5h", "10", "h", "1w", "1h30m", "99999999s", "\uff11h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="use 90s, 30m, 2h or 1d"):
        seconds_of(text)


def test_lifetime_counts_from_the_claim_and_is_never_shortened() -> None:
    assert longer_ttl(sandbox(), 3600, NOW) == 3700
    assert longer_ttl(sandbox(), 60, NOW) == 600


def test_lifetime_is_bounded() -> None:
    assert longer_ttl(sandbox(), MAX_LIFETIME - 100, NOW) == MAX_LIFETIME
    with pytest.raises(PluginError, match="choose a shorter time"):
        longer_ttl(sandbox(), MAX_LIFETIME - 99, NOW)


def test_what_nobody_holds_has_no_end_to_move() -> None:
    with pytest.raises(PluginError, match="It is not claimed"):
        longer_ttl(sandbox(age=None), 60, NOW)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "-f", "/no/such/file", "x"), "can't be read"),
        (("extend", "no-such", "1w"), "use 90s, 30m, 2h or 1d"),
        (("run", "-c", "1"), "required"),
    ],
)
def test_what_can_not_be_had_is_said(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-sandpod", *words])
    monkeypatch.setenv("PATH", "/nonexistent")  # kubectl is not asked
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err
