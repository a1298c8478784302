"""Every promise about security says how far its tests go, and which row of `sandpod verify` tries it or why none."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pages
from sandpod_gateway.verify.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]
LEDGER: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests/ledger.toml").read_text(encoding="utf-8"))
IDS = {id_ for topic in pages.promises().values() for id_ in topic}
# Where README and docs/ say what is protected, as lists.
PLACES = (("README.md", "## What it protects against"), ("docs/secure.md", "## How a sandbox is locked down"))


def topics_of_security() -> set[str]:
    """Return the topics whose promises docs/secure.md has."""
    text = (ROOT / "docs/secure.md").read_text(encoding="utf-8")
    return set(" ".join(re.findall(r"<!-- generated: promises (.+?) -->", text)).split())


def test_each_promise_about_security_is_in_the_ledger_and_no_other() -> None:
    promises = pages.promises()
    assert LEDGER.keys() - {"others", "depth", "sentences"} == topics_of_security()
    for topic in topics_of_security():
        assert list(LEDGER[topic]) == list(promises[topic]), topic


def test_each_says_how_far_its_tests_go_and_has_rows_or_says_why_not() -> None:
    for topic in topics_of_security():
        for id_, entry in LEDGER[topic].items():
            assert entry.keys() in ({"bound", "rows"}, {"bound", "why"}), id_
            assert entry["bound"].endswith("."), id_
            assert entry.get("rows") or entry["why"].endswith("."), id_


def test_every_row_tries_a_promise_and_every_row_that_is_named_exists() -> None:
    named = [row for topic in topics_of_security() for entry in LEDGER[topic].values() for row in entry.get("rows", ())]
    more = [row for part in ("others", "depth") for rows in LEDGER[part].values() for row in rows]
    assert {*named, *more} == {row.id for row in ROWS}
    assert LEDGER["others"].keys() | LEDGER["depth"].keys() <= IDS


def bullets(page: str, heading: str) -> list[str]:
    """Return the points of the list below a heading, each on one line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.split(f"{heading}\n", 1)[1], flags=re.MULTILINE)[0]
    return [
        " ".join(point.split()) for point in re.findall(r"^- (.+?)(?=^- |^\s*$)", section, re.MULTILINE | re.DOTALL)
    ]


def test_each_sentence_about_security_stands_on_promises_that_tests_prove() -> None:
    proved = pages.marked("promise")
    points = [point for place in PLACES for point in bullets(*place)]
    assert len(points) > len(PLACES)
    beginnings = LEDGER["sentences"]
    for point in points:
        assert len([each for each in beginnings if point.startswith(each)]) == 1, point
    assert [each for each in beginnings if not any(point.startswith(each) for point in points)] == []
    assert {id_ for ids in beginnings.values() for id_ in ids} <= proved.keys()
