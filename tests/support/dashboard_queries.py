"""The queries of the chart's dashboards, as a browser would send them with something chosen at their tops."""

import json
from collections.abc import Iterator
from typing import Any

from support.chart.render import CHART


def queries(**chosen: str) -> Iterator[tuple[str, str, str]]:
    """Yield the page, the panel and the query of each, with values in the place of variables."""
    chosen = {"__rate_interval": "30s", "__range": "30s", **chosen}
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        page: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for panel in page["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"]
                for name, value in chosen.items():
                    query = query.replace(f"${name}", value)
                yield path.stem, panel["title"], query
