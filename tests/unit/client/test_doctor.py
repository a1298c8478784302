"""What the doctor says of a server's keys."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod.cli import doctor

if TYPE_CHECKING:
    from sandpod.api import Api


@pytest.mark.parametrize(
    ("url", "headers", "state", "words"),
    [
        ("https://sandpod.example.com", {"Authorization": "Bearer sp_x"}, True, "It is taken."),
        ("http://127.0.0.1:8000", {}, True, "None is needed."),
        ("http://[::1]:8000", {}, True, "None is needed."),
        ("https://sandpod.example.com", {}, None, "None is needed: whoever reaches this server is the same user"),
        ("http://10.0.0.1:8000", {}, None, "and an administrator."),
    ],
)
def test_server_elsewhere_that_needs_no_key_is_not_said_to_be_in_order(
    url: str, headers: dict[str, str], state: Any, words: str
) -> None:
    what, found, said = doctor._key(cast("Api", SimpleNamespace(url=url, headers=headers)))
    assert (what, found, words in said) == ("key", state, True), said
