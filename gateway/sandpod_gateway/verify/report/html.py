"""The report as one page of HTML: no scripts, and nothing from elsewhere."""

from html import escape
from itertools import groupby
from typing import Final

from sandpod_gateway.verify.model import Finding, Status
from sandpod_gateway.verify.report.text import WORDS, summary
from sandpod_gateway.verify.run import Report

_STYLE: Final = """
:root { color-scheme: light dark; --pass: #1a7f37; --fail: #cf222e; --rest: #6e7781; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid #8884; }
th { font-weight: 600; } td:first-child { white-space: nowrap; } code { font-size: .9em; }
.pass { color: var(--pass); } .fail, .not_tried { color: var(--fail); font-weight: 700; }
.not_applicable { color: var(--rest); }
.seen { overflow-wrap: anywhere; }
"""
# Whoever opens it runs nothing of a sandbox's, whatever is in it.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def render(report: Report) -> str:
    """Return the page."""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>sandpod verify: {escape(report.target)}</title><style>{_STYLE}</style></head>\n<body>"
    )
    parts = [head, "<h1>sandpod verify</h1>", f"<p>{escape(report.target)}, {escape(report.started)}</p>"]
    parts.append(f"<p><strong>{escape(summary(report))}</strong></p>")
    for topic, findings in groupby(report.findings, lambda finding: finding.row.topic):
        rows = "\n".join(map(_row, findings))
        columns = "".join(
            f"<th>{name}</th>"
            for name in ("Result", "Promise", "What was tried", "What was seen", "What it does not show")
        )
        parts.append(f"<h2>{escape(topic)}</h2>\n<table><tr>{columns}</tr>\n{rows}\n</table>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _row(finding: Finding) -> str:
    status: Status = finding.verdict.status
    row = finding.row
    cells = [
        f'<td class="{status.value}">{WORDS[status].lower()}</td>',
        f"<td>{escape(row.promise)}<br><code>{escape(row.id)}</code></td>",
        f"<td>{escape(row.tried)}</td>",
        f'<td class="seen">{escape(finding.verdict.seen)}</td>',
        f"<td>{escape(row.bound)}</td>",
    ]
    return f'<tr id="{escape(row.id)}">{"".join(cells)}</tr>'
