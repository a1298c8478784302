"""How dashboards and panels of this project look, by Grafana's own builders."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE: Final = "[$__rate_interval]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel: its queries, each with what its series are called."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"  # as Grafana names units: s, bytes, reqps, percentunit
    text: str = ""  # what it tells, where the title does not
    number: bool = False  # whether it shows the last value, not the time


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    label: str
    query: str
    several: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A dashboard: its rows of panels, by the rows' titles."""

    uid: str
    title: str
    text: str
    variables: Sequence[Variable]
    rows: dict[str, Sequence[Panel]]


def quantiles(metric: str, by: str, selector: str) -> list[tuple[str, str]]:
    """Return the queries of a histogram's median and slowest hundredth, by a label."""
    rate = f"sum by ({by}, le) (rate({metric}_bucket{{{selector}}}{RATE}))"
    return [(f"histogram_quantile({q}, {rate})", f"p{q * 100:g} {{{{{by}}}}}") for q in (0.5, 0.99)]


def built(page: Page) -> str:
    """Return a dashboard as JSON."""
    made = (
        builders.Dashboard(page.title)
        .uid(page.uid)
        .description(page.text)
        .tags(["sandpod"])
        .editable()
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for each in page.variables:
        variable = (
            builders.QueryVariable(each.name)
            .label(each.label)
            .query(each.query)
            .datasource(SOURCE)
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
        )
        if each.several:
            variable = variable.multi(multi=True).include_all(include_all=True).all_value(".*")
        made = made.with_variable(variable)
    numbers = itertools.count(1)
    for title, panels in page.rows.items():
        made = made.with_row(builders.Row(title).id(next(numbers)))
        width = 24 // max(3, len(panels)) if panels[0].number else 8
        for panel in panels:
            made = made.with_panel(_panel(panel, width).id(next(numbers)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _panel(panel: Panel, width: int) -> Any:
    if panel.number:
        made: Any = stat.Panel().height(4)
        made = made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    else:
        made = timeseries.Panel().height(8).fill_opacity(10)
    made = made.title(panel.title).description(panel.text).unit(panel.unit).span(width).datasource(SOURCE)
    for number, (query, legend) in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + number))
        made = made.with_target(target.datasource(SOURCE))
    return made
