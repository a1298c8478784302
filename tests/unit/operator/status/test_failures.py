import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_api.conditions import Reason
from sandpod_operator.model.pod import Pod
from sandpod_operator.status.failures import MAX_MESSAGE, cause, clean, end_of, exceeds_whole_quota, obstacle
from support.operator.world import a_pod, ended


@given(st.text(max_size=5000))
def test_text_from_elsewhere_becomes_one_short_line_that_can_be_written(text: str) -> None:
    line = clean(text)
    assert len(line) <= MAX_MESSAGE
    assert not any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in line)
    line.encode()


def test_ordinary_text_is_left_as_it_is() -> None:
    assert clean("Zu wenig Speicher für 数据 🙂") == "Zu wenig Speicher für 数据 🙂"


def test_detail_follows_the_reasons_sentence() -> None:
    assert cause(Reason.UNSCHEDULABLE, "0/3 nodes.").message == "No node can run the pod: 0/3 nodes."
    assert cause(Reason.UNSCHEDULABLE, " \n").message == "No node can run the pod."


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


def test_image_without_a_runner_is_told_in_plain_words() -> None:
    message = 'exec: "/opt/sandpod/runner/bin/python3": stat /opt/sandpod/runner/bin/python3: no such file or directory'
    end = end_of(a_pod(status=ended(128, reason="StartError", message=message)), was_ready=False)
    sentence = (
        "The container can't be started: its image has no Sandpod runner; set `runner: Injected` in the template."
    )
    assert end == (Reason.START_FAILED, sentence)


def before(state: dict[str, Any], **status: Any) -> Pod:
    """A pod whose container waits for one before it, which is in this state."""
    waits = {"name": "sandbox", "state": {"waiting": {"reason": "PodInitializing"}}}
    first = {"name": "runner", "state": state}
    return a_pod(status={"phase": "Pending", "initContainerStatuses": [first], "containerStatuses": [waits], **status})


def test_runner_that_could_not_be_brought_is_the_reason() -> None:
    pod = before({"terminated": {"exitCode": 1, "reason": "Error", "message": ""}}, phase="Failed")
    sentence = "The container can't be started: its init container 'runner' ended with exit code 1."
    assert end_of(pod, was_ready=False) == (Reason.START_FAILED, sentence)


def test_runners_own_image_that_can_not_be_pulled_is_the_obstacle() -> None:
    stuck = obstacle(before({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}))
    assert stuck == (Reason.IMAGE_PULL_FAILED, "The image can't be pulled: no such image")
    assert obstacle(before({"terminated": {"exitCode": 0}})) is None


@pytest.mark.parametrize(
    ("requested", "limited", "exceeds"),
    [
        ("limits.cpu=51", "limits.cpu=50", True),
        ("limits.cpu=50", "limits.cpu=50", False),
        ("limits.cpu=500m,limits.memory=3Gi", "limits.cpu=50,limits.memory=2048Mi", True),
        ("limits.cpu=1,limits.memory=536870912", "limits.cpu=50,limits.memory=512Mi", False),
        ("pods=1", "pods=0", True),
        ("limits.cpu=51", "limits.cpu=5e1", False),
        ("limits.cpu=51", "other=1", False),
    ],
)
def test_what_no_place_is_large_enough_for_is_seen_in_the_api_servers_sentence(
    requested: str, limited: str, *, exceeds: bool
) -> None:
    said = f'pods "x" is forbidden: exceeded quota: q, requested: {requested}, used: limits.cpu=9, limited: {limited}'
    assert exceeds_whole_quota(said) is exceeds


@given(st.text())
def test_any_other_sentence_says_nothing_of_it(text: str) -> None:
    assert not exceeds_whole_quota(text)
