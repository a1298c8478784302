"""The report as text for a terminal."""

import textwrap
from itertools import groupby
from typing import Final

from sandpod_gateway.verify.model import Finding, Status
from sandpod_gateway.verify.run import Report

WORDS: Final = {
    Status.PASS: "pass",
    Status.FAIL: "FAIL",
    Status.NOT_APPLICABLE: "n/a",
    Status.NOT_TRIED: "NOT TRIED",
}
_WIDTH: Final = 116


def render(report: Report) -> str:
    """Return the report: each row on a line, and more of those that did not pass."""
    lines = [f"sandpod verify: {report.target}", ""]
    for topic, findings in groupby(report.findings, lambda finding: finding.row.topic):
        lines.append(topic)
        for finding in findings:
            lines += _lines(finding)
        lines.append("")
    return "\n".join([*lines, summary(report)]) + "\n"


def summary(report: Report) -> str:
    """Return the last line."""
    counts = ", ".join(f"{report.count(status)} {word.lower()}" for status, word in WORDS.items())
    words = {
        0: "Every promise that was tried held.",
        1: "A promise was broken.",
        2: "Not every promise could be tried.",
    }
    return f"{words[report.exit_code]} {len(report.findings)} rows: {counts}; {report.seconds:.0f} s."


def _lines(finding: Finding) -> list[str]:
    status = finding.verdict.status
    lines = [f"  {WORDS[status]:9} {finding.row.id:24} {finding.row.promise}"]
    if status in {Status.FAIL, Status.NOT_TRIED}:
        for name, text in (("seen", finding.verdict.seen), ("tried", finding.row.tried)):
            lines += textwrap.wrap(f"{name}: {text}", _WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 14)
    return lines
