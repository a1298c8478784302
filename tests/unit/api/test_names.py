import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpod_api.names import DNS_LABEL, MAX_LABEL, child_name, is_dns_label, label_value, network_policy_name

LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.text(max_size=300))
def test_any_text_has_a_label_value_that_says_nothing_of_it(text: str) -> None:
    value = label_value(text)
    assert re.fullmatch(r"[0-9a-f]{40}", value)
    assert label_value(text) == value


@pytest.mark.promise("object-names")
def test_owners_that_differ_only_in_case_or_look_have_different_labels() -> None:
    texts = ["alice", "Alice", "alice ", "аlice", "alice\0", ""]  # noqa: RUF001 - a Cyrillic look-alike is the point
    assert len({label_value(text) for text in texts}) == len(texts)


def test_text_with_lone_surrogates_has_a_label_too() -> None:
    assert label_value("\ud800") != label_value("\ud801")


@given(parent=LABELS, suffix=st.from_regex(r"[a-z0-9]{1,16}", fullmatch=True))
def test_child_of_a_valid_name_has_a_valid_name(parent: str, suffix: str) -> None:
    name = child_name(parent, suffix)
    assert is_dns_label(name)
    assert name.endswith(f"-{suffix}")
    assert len(name) <= MAX_LABEL


def test_long_parents_that_differ_at_the_end_have_different_children() -> None:
    one, two = "a" * 62 + "1", "a" * 62 + "2"
    assert child_name(one, "x") != child_name(two, "x")


@given(template=LABELS, profile=LABELS)
def test_policy_of_a_profile_has_a_valid_name(template: str, profile: str) -> None:
    assert len(network_policy_name(template, profile)) <= 253


@pytest.mark.parametrize("text", ["a", "0", "a-b", "a" * 63, "7c9e6679-7425-40de-944b-e07fc1f90ae7"])
def test_dns_label_is_taken(text: str) -> None:
    assert is_dns_label(text)
    assert re.search(DNS_LABEL, text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n", "用户", "á", "../a", "a b"])
def test_what_is_no_dns_label_is_not(text: str) -> None:
    assert not is_dns_label(text)
