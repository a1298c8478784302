"""Which rows a page gets that asks again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.console.tables import EMPTY, MAX_KNOWN, Table, Tables

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(name: str, **more: object) -> SandboxRecord:
    fields = {"name": name, "owner": "user:ann", "session": "", "template": "default", "network": "none"}
    times = {"created": NOW, "ttl": 60, "idle_timeout": 60}
    return replace(SandboxRecord(**fields, **times, status="Ready"), **more)  # type: ignore[arg-type]


def names_since(table: Table, tag: str) -> tuple[list[str], list[str], list[str]] | None:
    changes = table.since(tag)
    if changes is None:
        return None
    return [each.name for each in changes.new], [each.name for each in changes.changed], changes.gone


def test_a_page_gets_what_is_another_since_it_asked_whatever_came_between() -> None:
    table, a, b, c = Table(), record("a"), record("b"), record("c")
    table.use([a, b])
    first = table.tag
    assert table.since(EMPTY) is None  # there is a text in place of rows
    assert table.since("no-such") is None
    assert not table.since(first)
    table.use([replace(a, last_activity=NOW), b, c])
    second = table.tag
    assert names_since(table, first) == (["c"], ["a"], [])
    table.use([replace(a, last_activity=NOW), replace(c, status="Failed")])
    assert names_since(table, first) == (["c"], ["a"], ["b"])
    assert names_since(table, second) == ([], ["c"], ["b"])
    table.use([a, b, c])  # b is back, and all else as it was for neither
    assert names_since(table, first) == (["b", "c"], ["a"], ["b"])
    table.use([a, b])  # as at first: who knows that needs nothing
    assert table.tag == first
    assert not table.since(first)
    table.use([])
    assert table.tag == EMPTY
    assert table.since(first) is None


def test_gateways_give_the_same_rows_the_same_tag_and_keep_no_more_than_some() -> None:
    one, other = Table(), Table()
    one.use([record("gone"), record("a")])
    for index in range(2 * MAX_KNOWN):
        one.use([record("a", last_activity=NOW + timedelta(seconds=index)), record(f"b{index}")])
    other.use([record("a", last_activity=NOW + timedelta(seconds=2 * MAX_KNOWN - 1)), record(f"b{2 * MAX_KNOWN - 1}")])
    assert one.tag == other.tag
    assert len(one._known) == MAX_KNOWN
    assert len(one._gone) < MAX_KNOWN
    used = list(one._known)[1]
    assert names_since(one, used) == ([f"b{2 * MAX_KNOWN - 1}"], ["a"], list(one._gone)[1 - MAX_KNOWN + 1 :])


def test_those_who_see_other_rows_have_tables_of_their_own() -> None:
    tables = Tables()
    ann = tables.of("ann", None, records=[record("a")])
    assert tables.of("ann", frozenset({"small"}), records=[]).tag == EMPTY
    assert tables.of("ann", None, records=[record("a")]) is ann
