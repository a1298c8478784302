"""The reports of `sandpod verify`: text, HTML without scripts, JSON with a version, SARIF."""

import json

import pytest

from sandpod_gateway.verify.model import Status, judged
from sandpod_gateway.verify.report import html, machine, text
from sandpod_gateway.verify.rows import ROWS
from sandpod_gateway.verify.run import Report
from support.verify.evidence import broken

HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture
def report() -> Report:
    """One promise is broken, by somebody who writes into the report."""
    seen = broken("root-read-only")
    seen["files"]["writable"].append(HOSTILE)
    del seen["apart"]
    findings = tuple(judged(row, "kubernetes", seen) for row in ROWS)
    return Report(kind="kubernetes", target="a <cluster>", started="2026-11-30T12:00:00Z", seconds=2, findings=findings)


def test_text_names_every_row_and_tells_more_of_what_failed(report: Report) -> None:
    shown = text.render(report)
    assert [row.id for row in ROWS if f" {row.id} " not in shown] == []
    assert "FAIL      root-read-only" in shown
    assert "seen: /usr/bin can be written to" in shown
    assert "A promise was broken." in shown.splitlines()[-1]


def test_page_has_every_row_and_runs_nothing(report: Report) -> None:
    page = html.render(report)
    assert [row.id for row in ROWS if f'<tr id="{row.id}">' not in page] == []
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere


def test_json_says_its_version_and_counts(report: Report) -> None:
    made = json.loads(json.dumps(machine.as_json(report)))
    assert (made["schema"], made["exit_code"]) == ("sandpod.dev/verify/v1", 1)
    assert sum(made["summary"].values()) == len(made["rows"]) == len(ROWS)
    row = next(each for each in made["rows"] if each["id"] == "root-read-only")
    assert row.keys() == {"id", "topic", "promise", "tried", "status", "seen", "bound"}
    assert row["status"] == "fail"


def test_sarif_has_a_rule_and_a_result_for_each_row(report: Report) -> None:
    made = json.loads(json.dumps(machine.as_sarif(report)))
    [run] = made["runs"]
    rules, results = run["tool"]["driver"]["rules"], run["results"]
    assert [rule["id"] for rule in rules] == [row.id for row in ROWS]
    assert [rules[result["ruleIndex"]]["id"] for result in results] == [result["ruleId"] for result in results]
    kinds = {result["ruleId"]: (result["kind"], result["level"]) for result in results}
    assert kinds["root-read-only"] == ("fail", "error")
    assert kinds["sandboxes-share-no-files"] == ("open", "none")
    assert kinds["host-invisible"] == ("notApplicable", "none")
    # Where a result is no failure, SARIF allows no other level than none.
    assert {level for kind, level in kinds.values() if kind != "fail"} == {"none"}
    assert run["invocations"][0]["executionSuccessful"] is (report.count(Status.NOT_TRIED) == 0)
