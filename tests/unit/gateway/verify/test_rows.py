"""Every row of `sandpod verify` is green where its promise is kept, red where it is broken, and not for nothing."""

import pytest

from sandpod_gateway.verify.model import Finding, Kind, Row, Status, Untried, exit_code, judged
from sandpod_gateway.verify.rows import ROWS
from support.verify.evidence import BREAKERS, broken, good

BY_ID = {row.id: row for row in ROWS}


def kind_of(row: Row) -> Kind:
    return row.kinds[0]


def test_every_row_has_an_id_of_its_own_and_a_breaker() -> None:
    assert len(BY_ID) == len(ROWS)
    assert BREAKERS.keys() == BY_ID.keys()


def test_every_row_says_what_was_tried_what_that_does_not_show_and_why_it_may_not_apply() -> None:
    for row in ROWS:
        assert all(text.endswith(".") for text in (row.promise, row.tried, row.bound)), row.id
        assert (len(row.kinds) == 2) == (not row.elsewhere), row.id


@pytest.mark.parametrize("id_", BY_ID)
def test_row_is_green_where_its_promise_is_kept_and_red_where_it_is_broken(id_: str) -> None:
    row = BY_ID[id_]
    before = judged(row, kind_of(row), good()).verdict
    assert before.status is Status.PASS, before.seen
    after = judged(row, kind_of(row), broken(id_)).verdict
    assert after.status is Status.FAIL, after.seen


def test_row_of_which_nothing_makes_sense_or_nothing_is_known_is_never_green() -> None:
    for row in ROWS:
        for facts in ({}, {"groups": 7}, dict.fromkeys(good()[row.source]), Untried("no sandbox")):
            found = judged(row, kind_of(row), {row.source: facts}).verdict
            assert found.status in {Status.NOT_TRIED, Status.NOT_APPLICABLE, Status.FAIL}, (row.id, facts, found)
        assert judged(row, kind_of(row), {}).verdict.status is Status.NOT_TRIED


def test_row_of_another_kind_of_sandboxes_says_why_it_does_not_apply() -> None:
    for row in ROWS:
        for kind in {"kubernetes", "local"} - set(row.kinds):
            other: Kind = "local" if kind == "local" else "kubernetes"
            assert judged(row, other, broken(row.id)).verdict.status is Status.NOT_APPLICABLE


def test_what_a_sandbox_says_is_shown_on_one_bounded_line() -> None:
    seen = good()
    seen["files"]["writable"] = ["/x\x1b[2J\n" * 1000]
    shown = judged(BY_ID["root-read-only"], "kubernetes", seen).verdict.seen
    assert shown.isprintable()
    assert len(shown) <= 600


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((Status.PASS, Status.NOT_APPLICABLE), 0),
        ((Status.PASS, Status.NOT_TRIED), 2),
        ((Status.NOT_TRIED, Status.FAIL), 1),
    ],
)
def test_exit_code_is_the_worst_row(statuses: tuple[Status, ...], code: int) -> None:
    found = judged(ROWS[0], "local", good())
    findings = [Finding(found.row, type(found.verdict)(status, "")) for status in statuses]
    assert exit_code(findings) == code
