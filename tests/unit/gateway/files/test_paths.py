"""Paths as callers write them: what can be one, and that results and links name each in one way."""

import pytest

from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path, inside_workspace, shown_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("line\nbreak.txt", r"line\x0abreak.txt"),
        (r"line\x0abreak.txt", r"line\x0abreak.txt"),
        (r"/workspace/./caf\xe9.csv", r"caf\xe9.csv"),
        (r"a\b", r"a\b"),
        (r"a\x5cxe9", r"a\x5cxe9"),
    ],
)
def test_each_path_is_named_in_one_way(path: str, expected: str) -> None:
    assert shown_path(path) == inside_workspace(path) == expected


def test_length_is_that_of_the_name_and_not_of_its_spelling() -> None:
    check_path(r"\xe9" * 255)
    with pytest.raises(SandpodError):
        check_path(r"\xe9" * 256)
