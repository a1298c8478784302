"""Usage documents: what is kept, folded and forgotten adds up."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpod_gateway.usage import document as documents
from sandpod_gateway.usage.amounts import COLUMNS, OTHERS, Account, Amounts
from sandpod_gateway.usage.document import BackgroundRun, Document, SandboxUse, counting, decode, merged

ALICE, BOB = Account("", "alice", "ci"), Account("lab", "bob", "laptop")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
accounts = st.builds(Account, *[st.sampled_from(names) for names in (("", "lab"), ("alice", "bob", "é\n"), ("ci", ""))])
days = st.sampled_from(["2026-11-29", "2026-11-30"])
amounts = st.integers(0, 2**40).map(lambda number: Amounts(*(number + each for each in range(len(COLUMNS)))))
rows = st.dictionaries(st.tuples(days, accounts), amounts, max_size=4)
uses = st.builds(SandboxUse, accounts, st.just("default"), st.integers(1, 9), st.none() | st.integers(9, 99))
filled = st.builds(
    lambda rows, sandboxes: Document("", rows=rows, sandboxes=sandboxes),
    rows,
    st.dictionaries(st.sampled_from(["sbx-a", "sbx-b", "sbx-c"]), uses),
)


def total(*all_of_them: Document) -> Amounts:
    """Return the sum over all rows."""
    whole = Amounts()
    for document in all_of_them:
        for row in document.rows.values():
            whole.add(row)
    return whole


def of(replica: str, filling: Document) -> Document:
    return Document(replica, rows=filling.rows, sandboxes=filling.sandboxes)


@settings(max_examples=20, deadline=None)
@given(filled)
def test_document_is_kept_as_it_is(filling: Document) -> None:
    document = of("a", filling)
    document.folded, document.keys, document.folder = {"b": 3}, {"00ff": 7}, "c"
    document.background = {"sbx-a.run-1": BackgroundRun(ALICE, "sbx-a", 5, 9)}
    again = decode(document.encode())
    assert again.__dict__ == document.__dict__


@settings(max_examples=20, deadline=None)
@given(st.lists(filled, min_size=2, max_size=5), st.data())
def test_folds_in_any_order_count_everything_once(fillings: list[Document], data: st.DataObject) -> None:
    store = {name: of(name, filling) for name, filling in zip("abcde", fillings, strict=False)}
    whole = total(*store.values())
    while len(store) > 1:
        into, gone = data.draw(st.permutations(sorted(store)))[:2]
        store[into].fold(decode(store[gone].encode()))
        assert total(merged(store.values())) == whole, "while both are still there"
        if data.draw(st.booleans()):
            assert store[gone] not in counting(store.values())
        del store[gone]
        assert total(*store.values()) == whole


@settings(max_examples=20, deadline=None)
@given(rows, rows)
def test_what_came_after_an_earlier_state_is_the_difference(before: dict, after: dict) -> None:  # type: ignore[type-arg]
    base = Document("a", rows=before)
    document = decode(base.encode())
    for (day, account), more in after.items():
        document.charge(day, account, more)
    rest = document.minus(base, "b")
    base.fold(rest)
    assert {key: row for key, row in base.rows.items() if row} == {
        key: row for key, row in document.rows.items() if row
    }


def test_sandbox_is_counted_by_one_document() -> None:
    gone, folder = Document("gone"), Document("folder")
    gone.sandboxes["sbx-a"] = SandboxUse(ALICE, "default", 100, until=200, expires=900, memory=7)
    folder.sandboxes["sbx-a"] = SandboxUse(BOB, "", 150, amounts=Amounts(runs=2))  # it only ran something there
    folder.fold(gone)
    use = folder.sandboxes["sbx-a"]
    assert (use.account, use.began, use.until, use.expires, use.memory) == (ALICE, 100, 200, 900, 7)
    assert use.amounts.runs == 2
    rest = folder.minus(gone, "other")
    assert rest.sandboxes["sbx-a"].until is None


def test_too_many_rows_become_rows_of_others_and_no_amount_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_ROWS", 10)
    document = Document("a")
    for day in ("2026-11-28", "2026-11-29", "2026-11-30"):
        for user in range(8):
            document.charge(day, Account("lab", f"user{user}", ""), Amounts(cpu=1))
    assert total(document).cpu == 24
    assert len(document.rows) <= 10
    assert {account.user for day, account in document.rows if day == "2026-11-29"} == {OTHERS}
    assert len([account for day, account in document.rows if day == "2026-11-30"]) == 8, "today's are the last to go"
    assert document.lost_rows == 16


def test_document_fits_into_a_config_map_whatever_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 20_000)
    document = Document("a")
    for number in range(60):
        account = Account("t" * 63, "\u2028" * 120 + str(number), "é" * 128)
        document.charge(f"2026-11-{number % 3 + 10}", account, Amounts(bytes_in=10))
        document.sandboxes[f"sbx-{number}"] = SandboxUse(account, "default", number)
    assert len(document.encode()) <= 20_000
    assert total(document).bytes_in == 600


def test_old_days_and_sandboxes_are_forgotten_and_live_ones_are_not() -> None:
    document = Document("a", rows={("2026-11-01", ALICE): Amounts(runs=1), ("2026-11-30", ALICE): Amounts(runs=1)})
    document.sandboxes = {
        "sbx-old": SandboxUse(ALICE, "", 5),
        "sbx-live": SandboxUse(ALICE, "", 5, until=5),
        "sbx-new": SandboxUse(ALICE, "", round(NOW * 1e6)),
    }
    document.drop(NOW - 7 * 86_400)
    assert list(document.rows) == [("2026-11-30", ALICE)]
    assert list(document.sandboxes) == ["sbx-live", "sbx-new"]


def test_keys_that_were_not_used_for_longest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_KEYS", 2)
    document = Document("a")
    for key, minute in (("a", 1), ("b", 2), ("a", 3), ("c", 4), ("c", 1)):
        document.key_used(key, minute)
    assert document.keys == {"a": 3, "c": 4}


@pytest.mark.parametrize("wrong", [b"", b"[]", b"{}", b"\xff", b'{"version": 2}', b'{"version": 1, "rows": [[1]]}'])
def test_what_is_no_document_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="no usage document"):
        decode(wrong)


def test_amounts_of_a_later_version_are_read_as_far_as_they_are_known() -> None:
    plain = json.loads(Document("a", rows={("2026-11-30", ALICE): Amounts(runs=3)}).encode())
    plain["rows"][0][-1].append(99)
    assert decode(json.dumps(plain).encode()).rows["2026-11-30", ALICE] == Amounts(runs=3)
