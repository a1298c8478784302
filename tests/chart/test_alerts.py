"""Alerts ask for metrics and labels that the two programs have, have a page and a test, and are the same everywhere."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import metric_table
from rules import sped_up
from sandpod_gateway.api.results import ErrorCode
from support.chart.render import CHART, ROOT, Manifest, only, render

SOURCE: Final = CHART / "files" / "rules.yaml"
TESTS: Final = Path(__file__).parent / "rules" / "alerts.yaml"
RULES: Final = ("metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.release=p")


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[Manifest]:
    made = only(render(*RULES), "PrometheusRule", "sandpod")
    assert made["metadata"]["labels"]["release"] == "p"
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def alerts() -> list[Manifest]:
    return [rule for rule in rules() if "alert" in rule]


def labels_of() -> dict[str, set[str]]:
    """Return the labels of each metric, by the names that Prometheus has for it."""
    found: dict[str, set[str]] = {}
    for program in ("gateway", "operator"):
        for name, kind, labels, _ in metric_table.metrics(program):
            found[name] = set(labels)
            if kind == "histogram":
                found |= {f"{name}_{part}": {*labels, "le"} for part in ("bucket", "sum", "count")}
    return found


def test_there_are_none_unless_asked_for() -> None:
    assert not [m for m in render() if m["kind"] == "PrometheusRule" or m["metadata"]["name"] == "sandpod-rules"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rule_asks_for_what_there_is(rule: Manifest) -> None:
    known, recorded = labels_of(), {each["record"] for each in rules() if "record" in each}
    asked = re.findall(r"(?<![\w:])(sandpod_\w+)(?:\{(.*?)\})?", rule["expr"], re.DOTALL)
    assert asked or any(name in rule["expr"] for name in recorded)
    for name, selector in asked:
        # Prometheus adds the namespace of what it scraped.
        assert set(re.findall(r"(\w+)=", selector)) <= known[name] | {"namespace"}
    for code in re.findall(r"code=~\"(.*?)\"", rule["expr"]):
        assert set(code.split("|")) <= {each.value for each in ErrorCode}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alert_says_what_it_means_and_has_a_page_and_a_test(alert: Manifest) -> None:
    assert alert["annotations"]["summary"].endswith((".", "?"))
    assert alert["labels"]["severity"] in {"warning", "critical"}
    page = ROOT / alert["annotations"]["runbook_url"]
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {alert['alert']}\n\n*{alert['labels']['severity'].capitalize()}.*")
    assert "## First look" in text
    assert "## What to do" in text
    tested = {
        each["alertname"]: each["exp_alerts"]
        for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
        for each in test.get("alert_rule_test", [])
    }
    assert tested[alert["alert"]], "the last look of its test must find it"


def test_no_page_is_about_an_alert_that_is_gone() -> None:
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")} - {"index"}
    assert pages == {alert["alert"] for alert in alerts()}


def test_prometheus_takes_the_rules_and_each_fires_when_it_should() -> None:
    promtool("check", "rules", str(SOURCE))
    promtool("test", "rules", str(TESTS))


def test_rules_are_the_same_in_the_chart_and_the_file_but_for_the_namespaces(tmp_path: Path) -> None:
    source: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    assert [rule for group in source["groups"] for rule in group["rules"]] == rules()
    values = ("metrics.rules.enabled=true", "metrics.runbooks=https://docs.test/rb/", "sandboxes.namespace=boxes")
    made = only(render(*values), "ConfigMap", "sandpod-rules")["data"]["sandpod.yaml"]
    found = str(yaml.safe_load(made))
    assert 'namespace=~"boxes"' in found
    assert "sandpod-sandboxes" not in found
    assert "'runbook_url': 'https://docs.test/rb/SandpodPoolEmpty.md'" in found
    path = tmp_path / "rules.yaml"
    path.write_text(sped_up(made, 60), encoding="utf-8")
    promtool("check", "rules", str(path))


def test_times_are_divided_and_thresholds_are_not() -> None:
    fast = sped_up(SOURCE.read_text(encoding="utf-8"), 60)
    by_name = {r.get("alert"): r for group in yaml.safe_load(fast)["groups"] for r in group["rules"]}
    assert by_name["SandpodOperatorWatchStalled"]["expr"].endswith("> 5")
    assert by_name["SandpodStreamsFail"]["expr"].endswith("[15s])) > 5")
    assert by_name["SandpodStreamsFail"]["for"] == "5s"
    assert by_name["SandpodKernelShared"]["expr"].endswith(" offset 15s) > 0")
    assert "14 * 86400" in by_name["SandpodCertificateExpires"]["expr"]
