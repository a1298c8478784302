"""How long a refused pod waits for its next try."""

from datetime import UTC, datetime, timedelta

from sandpod_kube.errors import DeniedError
from sandpod_operator.controllers.context import State
from sandpod_operator.settings import OperatorSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_each_refusal_waits_longer_and_none_longer_than_a_minute() -> None:
    state, waits = State(), []
    for _ in range(40):
        state.refused("uid", DeniedError(403, "", "no"), NOW, OperatorSettings(namespaces=["boxes"]))
        waits.append(state.refusals["uid"].until - NOW)
    assert waits[:4] == [timedelta(seconds=seconds) for seconds in (5, 10, 20, 40)]
    assert set(waits[4:]) == {timedelta(minutes=1)}
