"""What every backend must do: one sentence each, by id.

`base.py` in the gateway's backends says the same to those who write one. `test_backends.py` has a test for every id,
and a test that none is missing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

OBLIGATIONS = {
    "claim:ready": "A claim returns a Ready record with all that was asked for.",
    "claim:session": "A second claim of a session returns the first one's sandbox.",
    "claim:session-race": "Claims of one session that race return one sandbox.",
    "claim:no-session": "Claims without a session each make a sandbox.",
    "claim:owner": "Another owner's claim of the same session gets another sandbox.",
    "claim:arguments": "A claim of an unknown template or network is refused and leaves nothing behind.",
    "claim:warm-only": "A claim that rules a cold start out takes a warm sandbox, or is refused and leaves nothing.",
    "claim:no-cold-start": "Where the server makes none on demand, asking for that is refused, also while one is warm.",
    "claim:limit": "A claim over the owner's limit is refused, and a closed sandbox makes room.",
    "claim:limit-race": "Claims that race do not pass the owner's limit.",
    "names:unknown": "A name that is unknown or malformed does not exist, and harms nothing.",
    "list:owner": "A list has the owner's sandboxes only, oldest first.",
    "delete:gone": "A deleted sandbox is gone, and deleting it again does nothing.",
    "delete:session": "A session whose sandbox was deleted can be claimed anew.",
    "delete:stream": "Deleting a sandbox ends its streams.",
    "expiry:ttl": "A sandbox ends after its ttl, and its record says so.",
    "expiry:idle": "A sandbox that is not used ends after its idle timeout, and its record says so.",
    "expiry:touch": "A sandbox that is used outlives its idle timeout.",
    "expiry:changed": "A sandbox's lifetime can be changed while it lives.",
    "expiry:busy": "A sandbox with a background run is not idle until the run's timeout.",
    "lost:record": "A sandbox whose runner ends is Failed, with a reason, and its session can be claimed anew.",
    "stream:hello": "The runner says hello on a stream.",
    "stream:run": "A program's output and end come over the stream.",
    "stream:pieces": "Output comes while the program runs.",
    "stream:cancel": "A run can be cancelled.",
    "stream:timeout": "A run ends at its timeout.",
    "stream:two": "A sandbox has several streams at once.",
    "stream:again": "After a stream was closed, another can be opened, and files are still there.",
    "stream:close": "Closing a stream wakes its reader, refuses writes, and can be repeated.",
    "files:apart": "A sandbox does not see another's files.",
    "state:templates": "A started backend tells the templates that claims may name.",
    "state:check": "A started backend says that it works, its kind, and what is warm.",
}

_TestFunction = TypeVar("_TestFunction", bound=Callable[..., Any])


def keeps(obligation: str) -> Callable[[_TestFunction], _TestFunction]:
    """Mark the test of an obligation."""
    return pytest.mark.obligation(obligation)
