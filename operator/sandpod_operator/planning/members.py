"""What a pool's plan asks of each of its sandboxes, found once: the plan runs for each event of each of them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sandpod_api import names
from sandpod_api.conditions import Condition, ConditionType, Reason, find
from sandpod_api.types import Sandbox
from sandpod_operator.status.failures import FINAL

_PASSING: Final = frozenset({Reason.POD_PENDING, Reason.STARTING, Reason.START_RETRIED, Reason.OPEN_NETWORK_ALLOWED})


class Member(NamedTuple):
    """A warm sandbox, or one that is to be warm."""

    sandbox: Sandbox
    name: str
    ready: Condition | None
    warm: bool  # whether it can be claimed
    stuck: bool  # whether it is not, for a reason that does not pass by itself
    final: bool  # whether it never will be
    lacks_quota: bool
    lacks_node: bool
    age: timedelta
    stale: bool  # whether it was created from another state of the template, or is too old


def look_at(members: Sequence[Sandbox], template: str | None, max_age: timedelta, now: datetime) -> list[Member]:
    """Return what is to be known of a pool's sandboxes; `template` is the hash of theirs, if there is one."""
    return [_member(each, template, max_age, now) for each in members]


def _member(sandbox: Sandbox, template: str | None, max_age: timedelta, now: datetime) -> Member:
    metadata, status = sandbox.metadata, sandbox.status
    ready = find(status.conditions, ConditionType.READY)
    warm = ready is not None and ready.status == "True"
    age = now - metadata.creation_timestamp if metadata.creation_timestamp is not None else timedelta(0)
    made_from = metadata.annotations.get(names.ANNOTATION_TEMPLATE_HASH)
    return Member(
        sandbox=sandbox,
        name=metadata.name,
        ready=ready,
        warm=warm,
        stuck=ready is not None and not warm and ready.reason not in _PASSING,
        final=ready is not None and ready.status == "False" and ready.reason in FINAL,
        lacks_quota=status.reason == Reason.QUOTA_EXCEEDED,
        lacks_node=status.reason == Reason.UNSCHEDULABLE,
        age=age,
        stale=template is not None and (made_from != template or age >= max_age),
    )
