"""Who is woken while a quota is full: whoever has the turn, and nobody else."""

from datetime import datetime, timedelta

from sandpod_kube.resources import Key
from sandpod_operator.cache.object_cache import Store
from sandpod_operator.quota.admission import Admission
from support.operator.world import NOW, a_sandbox, settings


class Wakes:
    """A queue that does nothing."""

    def __init__(self) -> None:
        self.soon: list[str] = []
        self.later: list[tuple[str, datetime]] = []

    def add(self, key: Key) -> None:
        self.soon.append(key.name)

    def add_at(self, key: Key, date: datetime) -> None:
        self.later.append((key.name, date))


def test_those_who_wait_for_their_turn_are_not_woken_again_and_again() -> None:
    wakes = Wakes()
    admission = Admission(store=Store(), queue=wakes, settings=settings(), clock=lambda: NOW)
    boxes = [a_sandbox(f"box-{n:03}", claimed=200 - n) for n in range(100)]
    admission.refused(boxes[0], "exceeded quota")
    for box in boxes[1:]:
        held = admission.held(box, wants=True)
        # The second is asked, and the others have to wait for what is said to it.
        assert held is None or held.until >= NOW + timedelta(seconds=60)
    assert set(wakes.soon) == {"box-001"}
    assert wakes.later == [("box-000", NOW + timedelta(seconds=5))]


def test_one_of_them_wakes_all_when_time_is_a_sign_of_room() -> None:
    wakes = Wakes()
    admission = Admission(store=Store(), queue=wakes, settings=settings(), clock=lambda: NOW)
    for number in range(3):
        admission.refused(a_sandbox(f"box-{number}", claimed=200 - number), "exceeded quota")
    assert wakes.soon == []
    assert wakes.later == [("box-0", NOW + timedelta(seconds=5))] * 3
