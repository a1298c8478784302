"""The report for programs: JSON with a version of its own, and SARIF 2.1.0."""

import importlib.metadata
from typing import Any, Final

from sandpod_gateway.verify.model import Finding, Row, Status
from sandpod_gateway.verify.run import Report

SCHEMA: Final = "sandpod.dev/verify/v1"
"""Changes when a field changes its meaning or goes; new fields leave it as it is."""

_SARIF: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HELP: Final = "https://github.com/sandpod/sandpod/blob/main/docs/verify.md"
_KINDS: Final = {
    Status.PASS: "pass",
    Status.FAIL: "fail",
    Status.NOT_APPLICABLE: "notApplicable",
    Status.NOT_TRIED: "open",
}


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON."""
    return {
        "schema": SCHEMA,
        "version": importlib.metadata.version("sandpod"),
        "backend": report.kind,
        "target": report.target,
        "started": report.started,
        "seconds": round(report.seconds, 1),
        "exit_code": report.exit_code,
        "summary": {status.value: report.count(status) for status in Status},
        "rows": [_row(finding) for finding in report.findings],
    }


def _row(finding: Finding) -> dict[str, Any]:
    row = finding.row
    return {
        "id": row.id,
        "topic": row.topic,
        "promise": row.promise,
        "tried": row.tried,
        "status": finding.verdict.status.value,
        "seen": finding.verdict.seen,
        "bound": row.bound,
    }


def as_sarif(report: Report) -> dict[str, Any]:
    """Return the report as SARIF: a rule for each row, and a result for each, those that passed among them."""
    driver = {
        "name": "sandpod verify",
        "version": importlib.metadata.version("sandpod"),
        "informationUri": _HELP,
        "rules": [_rule(finding.row) for finding in report.findings],
    }
    invocation = {
        "executionSuccessful": report.count(Status.NOT_TRIED) == 0,
        "exitCode": report.exit_code,
        "startTimeUtc": report.started,
    }
    results = [_result(index, finding, report) for index, finding in enumerate(report.findings)]
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def _rule(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "shortDescription": {"text": row.promise},
        "fullDescription": {"text": f"{row.tried} What it does not show: {row.bound}"},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["security", row.topic.lower()]},
    }


def _result(index: int, finding: Finding, report: Report) -> dict[str, Any]:
    status = finding.verdict.status
    return {
        "ruleId": finding.row.id,
        "ruleIndex": index,
        "kind": _KINDS[status],
        "level": "error" if status is Status.FAIL else "none",
        "message": {"text": f"{finding.row.promise} {finding.verdict.seen}"},
        "locations": [{"logicalLocations": [{"fullyQualifiedName": report.target, "kind": "resource"}]}],
        "partialFingerprints": {"row/v1": f"{report.kind}:{finding.row.id}"},
    }
