import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from operator_world import a_pod, ended
from sandpod_api.conditions import Reason
from sandpod_operator.causes import MAX_MESSAGE, cause, clean, end_of


@given(st.text(max_size=5000))
def test_text_from_elsewhere_becomes_one_short_line_that_can_be_written(text: str) -> None:
    line = clean(text)
    assert len(line) <= MAX_MESSAGE
    assert not any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in line)
    line.encode()


def test_ordinary_text_is_left_as_it_is() -> None:
    assert clean("Zu wenig Speicher für 数据 🙂") == "Zu wenig Speicher für 数据 🙂"


def test_detail_follows_the_reasons_sentence() -> None:
    assert cause(Reason.UNSCHEDULABLE, "0/3 nodes.").message == "No node can take the pod: 0/3 nodes."
    assert cause(Reason.UNSCHEDULABLE, " \n").message == "No node can take the pod."


def test_termination_message_of_the_sandbox_is_made_safe() -> None:
    pod = a_pod(status=ended(1, message="\x1b[31mred\x1b[0m\nsecond " + "x" * 9000))
    end = end_of(pod, was_ready=True)
    assert end is not None
    assert end.message.startswith("The pod has ended: [31mred [0m second xxx")
    assert len(end.message) == MAX_MESSAGE


def test_pod_that_runs_has_not_ended() -> None:
    assert end_of(a_pod(), was_ready=False) is None


def test_finished_runner_is_an_end_too() -> None:
    end = end_of(a_pod(status=ended(0, reason="Completed", phase="Succeeded")), was_ready=True)
    assert end is not None
    assert (end.reason, end.message) == (Reason.POD_FAILED, "The pod has ended: the runner ended with exit code 0.")
