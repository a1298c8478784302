from itertools import islice

from chaos import plan
from chaos.faults import _MAKERS


def test_a_seed_chooses_the_same_faults_again_and_another_one_others() -> None:
    names = plan.possible({"nodes", "second node", "strace", "audit", "clock"})
    assert set(names) == set(plan.FAULTS) == set(_MAKERS)
    first, again, other = (list(islice(plan.rounds(seed, names), 50)) for seed in (7, 7, 8))
    assert first == again != other


def test_each_round_has_one_to_three_faults_and_each_fault_comes_before_any_comes_again() -> None:
    names = plan.possible({"nodes"})
    rounds = list(islice(plan.rounds(1, names), 100))
    assert {len(faults) for faults in rounds} == {1, 2, 3}
    dealt = [fault for faults in rounds for fault in faults]
    assert all(len({fault.name for fault in faults}) == len(faults) for faults in rounds)
    counts = [sum(fault.name == name for fault in dealt) for name in names]
    assert max(counts) - min(counts) <= 2
    for fault in dealt:
        low, high = plan.FAULTS[fault.name].seconds
        assert low <= fault.seconds <= high


def test_what_can_not_be_done_is_not_chosen() -> None:
    assert "node drained" not in plan.possible({"nodes"})
    assert all(not plan.FAULTS[name].needs for name in plan.possible(()))
    [only] = next(plan.rounds(3, ["clients' streams cut"]))
    assert only.name == "clients' streams cut"
