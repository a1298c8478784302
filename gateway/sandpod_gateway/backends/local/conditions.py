"""What is observed of a sandbox of this process, in the form that a cluster's has."""

from datetime import datetime
from typing import Final

from sandpod_api.conditions import SENTENCES, Condition, ConditionType, Reason
from sandpod_gateway.backends.base import Status

_ALSO: Final[dict[Status, ConditionType]] = {"Expired": ConditionType.EXPIRED, "Suspended": ConditionType.SUSPENDED}


def conditions_of(status: Status, reason: Reason, message: str, since: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a sandbox whose status changed."""
    of = {"reason": reason.value, "message": message, "last_transition_time": since}
    also = [Condition(type=_ALSO[status], status="True", **of)] if status in _ALSO else []
    return Condition(type=ConditionType.READY, status="True" if status == "Ready" else "False", **of), *also


def ready(since: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a sandbox that takes calls."""
    return conditions_of("Ready", Reason.READY, SENTENCES[Reason.READY], since)
