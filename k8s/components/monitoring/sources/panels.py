"""Panels for our dashboards, each with a sentence that says what to do.

This is a thin layer over Grafana's own library, which writes the JSON.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import xychart as xychart_model

DOCS = "https://hfmds.example/docs"
"""The address of docs/ for readers of alerts; README.md says how to change it."""

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "hfmds"

GOOD, FAIR, BAD = "green", "orange", "red"

_PAGE = re.compile(r"docs/([a-z-]+\.md(?:#[a-z-]+)?)")
_HERE = 'namespace=~"$namespace"'
# A metric, with or without matchers, or matchers alone; not the name in `__name__=~"hfmds_..."`.
_SERIES = re.compile(r'(?<!["\w])(hfmds_\w+)\{?|\{(?=__name__)')
_LETTERS = string.ascii_uppercase

Panel = TypeVar(
    "Panel",
    timeseries.Panel,
    stat.Panel,
    bargauge.Panel,
    heatmap.Panel,
    table.Panel,
    xychart.Panel,
)


def by_run(metric: str, *matchers: str) -> str:
    """Query a metric of each run, from any coordinator."""
    selected = ", ".join(('run=~"$run"', *matchers))
    return f"max by (run) ({metric}{{{selected}}})"


def query(expression: str, legend: str = "") -> prometheus.Dataquery:
    """Build a query over the time shown; the legend may name labels as {{run}}."""
    made = prometheus.Dataquery().expr(_here(expression)).range().datasource(SOURCE)
    return made.editor_mode(prometheus_model.QueryEditorMode.CODE).legend_format(legend or "__auto")


def now(expression: str, legend: str = "") -> prometheus.Dataquery:
    """Build a query for the end of the time shown."""
    return query(expression, legend).instant()


def quantile(
    share: float, buckets: str, legend: str, by: str = "le", over: str = "$window"
) -> prometheus.Dataquery:
    """Query the value that this share of a histogram is below; `buckets` selects its series."""
    rates = f"sum by ({by}) (rate({buckets}[{over}]))"
    return query(f"histogram_quantile({share}, {rates})", legend)


def lines(
    title: str,
    meaning: str,
    *queries: prometheus.Dataquery,
    unit: str = "short",
    steps: bool = False,
    stacked: bool = False,
    limits: Mapping[float, str] | None = None,
    minimum: float | None = 0,
    maximum: float | None = None,
    span: int = 12,
) -> timeseries.Panel:
    """Draw values over time; `steps` for values of rounds, `limits` as dashed lines."""
    panel = _panel(timeseries.Panel(), title, meaning, queries, unit, span, height=8)
    shape = looks.LineInterpolation.STEP_AFTER if steps else looks.LineInterpolation.LINEAR
    panel.line_interpolation(shape).line_width(2).fill_opacity(35 if stacked else 8)
    panel.gradient_mode(looks.GraphGradientMode.OPACITY).show_points(looks.VisibilityMode.NEVER)
    panel.span_nulls(600_000)  # one failed scrape leaves no gap, ten minutes do
    panel.legend(
        common.VizLegendOptions()
        .display_mode(looks.LegendDisplayMode.TABLE)
        .placement(looks.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
        .show_legend(True)
    )
    panel.tooltip(
        common.VizTooltipOptions()
        .mode(looks.TooltipDisplayMode.MULTI)
        .sort(looks.SortOrder.DESCENDING)
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    if limits:
        panel.thresholds(thresholds(limits))
        style = common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    return panel


def number(
    title: str,
    meaning: str,
    *queries: prometheus.Dataquery,
    unit: str = "short",
    limits: Mapping[float, str] | None = None,
    below: str = GOOD,
    words: Mapping[str, str] | None = None,
    decimals: int | None = None,
    span: int = 4,
) -> stat.Panel:
    """Show one number, coloured by the limits; `below` is the colour below the first limit."""
    panel = _panel(stat.Panel(), title, meaning, queries, unit, span, height=4)
    panel.color_mode(looks.BigValueColorMode.BACKGROUND if limits else looks.BigValueColorMode.NONE)
    panel.graph_mode(looks.BigValueGraphMode.AREA).thresholds(thresholds(limits or {}, below))
    panel.reduce_options(_last()).no_value("none")
    if decimals is not None:
        panel.decimals(decimals)
    if words:
        panel.mappings([_words(words)])
    return panel


def overview(
    title: str,
    meaning: str,
    label: str,
    columns: Mapping[str, tuple[str, str]],
    span: int = 24,
) -> table.Panel:
    """Draw a table: a row for each value of the label, a column for each expression."""
    queries = [
        now(expression).format(prometheus_model.PromQueryFormat.TABLE)
        for expression, _ in columns.values()
    ]
    panel = _panel(table.Panel(), title, meaning, queries, "short", span, height=7)
    _merge(panel, label, columns)
    for name, (_, unit) in columns.items():
        panel.override_by_name(name, [model.DynamicConfigValue(id_val="unit", value=unit)])
    return panel


def against(
    title: str,
    meaning: str,
    label: str,
    x: tuple[str, str],
    y: tuple[str, str],
    *,
    unit: str = "short",
    maximum: float | None = None,
    span: int = 12,
) -> xychart.Panel:
    """Draw one expression over another, with a curve for each value of the label."""
    columns = dict((x, y))
    queries = [
        query(expression).format(prometheus_model.PromQueryFormat.TABLE)
        for expression in columns.values()
    ]
    panel = _panel(xychart.Panel(), title, meaning, queries, "short", span, height=8)
    # In each resulting table the first number is x.
    _merge(panel, label, columns)
    apart = {"fields": [label], "keepFields": False}
    panel.with_transformation(
        model.DataTransformerConfig(id_val="partitionByValues", options=apart)
    )
    panel.mapping(xychart_model.SeriesMapping.AUTO).series([])
    panel.show(xychart_model.XYShowMode.POINTS_AND_LINES).line_width(2)
    panel.point_size(xychart.XychartFieldConfigPointSize().fixed(4))
    legend = common.VizLegendOptions().placement(looks.LegendPlacement.BOTTOM)
    panel.legend(legend.show_legend(True))
    of_y = {"unit": unit, "min": 0, "max": maximum}
    panel.override_by_regexp(f"/^{x[0]}/", _values_of({"decimals": 0, "custom.axisLabel": x[0]}))
    return panel.override_by_regexp(f"/^{y[0]}/", _values_of(of_y))


def bars(
    title: str,
    meaning: str,
    *queries: prometheus.Dataquery,
    unit: str = "short",
    limits: Mapping[float, str] | None = None,
    below: str = "blue",
    span: int = 12,
    height: int = 8,
) -> bargauge.Panel:
    """Draw a bar for the current value of each series."""
    panel = _panel(bargauge.Panel(), title, meaning, queries, unit, span, height)
    panel.orientation(looks.VizOrientation.HORIZONTAL).reduce_options(_last()).min(0)
    panel.display_mode(looks.BarGaugeDisplayMode.BASIC).show_unfilled(True)
    panel.name_placement(looks.BarGaugeNamePlacement.LEFT).no_value("none")
    return panel.thresholds(thresholds(limits or {}, below))


def heat(
    title: str, meaning: str, buckets: str, *, unit: str = "s", span: int = 12
) -> heatmap.Panel:
    """Draw a histogram over time; `buckets` selects its series."""
    increase = f"sum by (le) (increase({buckets}[$__rate_interval]))"
    ranges = query(increase, "{{le}}").format(prometheus_model.PromQueryFormat.HEATMAP)
    panel = _panel(heatmap.Panel(), title, meaning, (ranges,), "short", span, height=8)
    panel.calculate(False).y_axis(heatmap.YAxisConfig().unit(unit))
    colours = heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME)
    panel.color(colours.scheme("Turbo").steps(64).exponent(0.5).fill("dark-orange"))
    return panel.show_legend().mode(looks.TooltipDisplayMode.SINGLE)


def board(
    uid: str,
    title: str,
    meaning: str,
    variables: Sequence[dashboard.QueryVariable | dashboard.CustomVariable] = (),
) -> dashboard.Dashboard:
    """Build an empty dashboard with the common links and variables."""
    made = dashboard.Dashboard(f"HFMDS-FL / {title}").uid(uid).description(meaning)
    made.tags([TAG]).timezone("browser").refresh("30s").time("now-6h", "now").editable()
    made.tooltip(model.DashboardCursorSync.CROSSHAIR)
    made.with_variable(
        dashboard.DatasourceVariable("datasource").label("source").type("prometheus")
    )
    # Without this label all is one installation.
    anywhere = _values("namespace", "hfmds_coordinator_build_info").all_value(".*")
    for variable in (anywhere, *variables):
        made.with_variable(variable)
    others = dashboard.DashboardLink("Dashboards").type(model.DashboardLinkType.DASHBOARDS)
    made.link(others.tags([TAG]).as_dropdown(True).include_vars(True).keep_time(True))
    made.link(_page("Runbooks", "runbooks.md", "What to do when an alert fires"))
    made.link(_page("Operations", "operations.md", "The commands of an operator"))
    alerts = dashboard.AnnotationQuery().name("alerts").datasource(SOURCE).enable(True)
    firing = 'ALERTS{alertname=~"Hfmds.+", alertstate="firing"}'
    return made.annotation(alerts.icon_color("red").expr(firing))


def row(title: str) -> dashboard.Row:
    """Build a heading."""
    return dashboard.Row(title)


def from_label(label: str, series: str) -> dashboard.QueryVariable:
    """Build a variable for the values of a label; a reader may choose several."""
    return _values(label, _here(series))


def window() -> dashboard.CustomVariable:
    """Build the variable for the window of means, since rounds take seconds or hours."""
    chosen = model.VariableOption(selected=True, text="15m", value="15m")
    variable = dashboard.CustomVariable("window").values("5m,15m,1h,6h,1d").current(chosen)
    return variable.description("Choose a window longer than a round, so that each window has one.")


def thresholds(
    limits: Mapping[float, str], below: str = "transparent"
) -> dashboard.ThresholdsConfig:
    """Build the colours that start at each value."""
    steps = [model.Threshold(value=None, color=below)]
    steps += [model.Threshold(value=value, color=color) for value, color in limits.items()]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _panel(
    panel: Panel,
    title: str,
    meaning: str,
    queries: Sequence[prometheus.Dataquery],
    unit: str,
    span: int,
    height: int,
) -> Panel:
    linked = _PAGE.sub(rf"[\g<0>]({DOCS}/\g<1>)", meaning)
    panel.title(title).description(linked).datasource(SOURCE).unit(unit)
    for letter, one in zip(_LETTERS, queries, strict=False):
        panel.with_target(one.ref_id(letter))
    panel.span(span).height(height)
    return panel


def _merge(panel: table.Panel | xychart.Panel, label: str, columns: Iterable[str]) -> None:
    """Merge all queries into one table with a named column for each."""
    names = {f"Value #{letter}": name for letter, name in zip(_LETTERS, columns, strict=False)}
    order = {name: position for position, name in enumerate(("Time", label, *names))}
    panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    organised = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names}
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=organised))


def _values_of(settings: Mapping[str, object]) -> list[model.DynamicConfigValue]:
    return [
        model.DynamicConfigValue(id_val=name, value=value)
        for name, value in settings.items()
        if value is not None
    ]


def _values(label: str, series: str) -> dashboard.QueryVariable:
    variable = dashboard.QueryVariable(label).label(label).datasource(SOURCE)
    variable.query(f"label_values({series}, {label})").multi(True).include_all(True)
    variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    everything = model.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.sort(model.VariableSort.ALPHABETICAL_ASC).current(everything)


def _here(expression: str) -> str:
    """Narrow all our series to the chosen installation."""

    def narrowed(found: re.Match[str]) -> str:
        metric = found[1] or ""
        return metric + "{" + _HERE + (", " if found[0].endswith("{") else "}")

    return _SERIES.sub(narrowed, expression)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _words(words: Mapping[str, str]) -> model.ValueMap:
    options = {
        value: model.ValueMappingResult(text=text, index=position)
        for position, (value, text) in enumerate(words.items())
    }
    return model.ValueMap(options=options)


def _page(title: str, page: str, tooltip: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK).icon("doc")
    return link.url(f"{DOCS}/{page}").tooltip(tooltip).target_blank(True)
