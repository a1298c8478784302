"""Dashboards: in ConfigMaps where they are asked for, of metrics that there are, in a form that Prometheus takes."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

import metric_table
from support.chart.render import only, render
from support.dashboard_queries import queries

NAMES: Final = ("fleet", "operator", "sandbox", "tenant")


def dashboards(*values: str) -> dict[str, dict[str, Any]]:
    made = render("dashboards.enabled=true", *values)
    found = {name: only(made, "ConfigMap", f"sandpod-dashboard-{name}") for name in NAMES}
    assert len([each for each in made if "-dashboard-" in each["metadata"]["name"]]) == len(NAMES)
    return found


def test_they_are_in_config_maps_that_a_sidecar_finds() -> None:
    assert not [each for each in render() if "-dashboard-" in each["metadata"]["name"]]
    for name, each in dashboards("dashboards.annotations.grafana_folder=Sandpod").items():
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Sandpod"}
        page = json.loads(each["data"][f"sandpod-{name}.json"])
        assert page["uid"] == f"sandpod-{name}"
        ids = [panel["id"] for panel in page["panels"]]
        assert len(set(ids)) == len(ids) > 5
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page["panels"]]
        assert len(set(places)) == len(places)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in page["panels"])
        variables = {"$" + each["name"] for each in page["templating"]["list"]} | {"$__rate_interval", "$__range"}
        targets = json.dumps([panel.get("targets") for panel in page["panels"]])
        assert set(re.findall(r"\$\w+", targets)) <= variables
    labels = dashboards("dashboards.labels.own=x")["fleet"]["metadata"]["labels"]
    assert (labels["own"], labels["app.kubernetes.io/name"]) == ("x", "sandpod")


def test_each_panel_asks_for_what_there_is_and_prometheus_can_read_it(tmp_path: Path) -> None:
    known = {name for program in ("gateway", "operator") for name, *_ in metric_table.metrics(program)}
    rules = []
    for number, (page, panel, query) in enumerate(queries(namespace="a", sandboxes="b", tenant=".*", pod="c")):
        rules.append({"record": f"panel:{number}", "expr": query})
        for name in re.findall(r"(?<![\w:])sandpod_\w+", query):
            assert re.sub(r"_(bucket|count|sum)$", "", name) in known, f"{page}: {panel}"
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
