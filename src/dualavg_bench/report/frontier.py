"""The section of a page about two scores: the frontier as a figure, and tables of both scores."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from dualavg_bench.analysis import formatting, frontier, verdict
from dualavg_bench.report.drawing import INK, LIGHT, MARKERS, belonging, dash, looks, svg, wrapped
from dualavg_bench.report.page import Drawn, drawn
from dualavg_bench.store.summaries import Summary

DASH = "\N{EN DASH}"
START = "before"  # the label of the start


@dataclass(frozen=True)
class EqualRow:
    """An optimizer in the table of second scores at an equal value of the metric."""

    name: str
    value: str
    interval: str
    difference: str
    difference_interval: str


@dataclass(frozen=True)
class EqualTable:
    """The second scores at one value of the metric."""

    level: str
    reached_by: int
    seeds: int
    rows: list[EqualRow]


@dataclass(frozen=True)
class FrontierView:
    """All that the template prints about the second score: text, formatted but not escaped."""

    also: str
    unit: str
    better: str  # where in the figure
    start: str
    figure: Drawn
    equal: list[EqualTable]


def view(summary: Summary, prefix: str) -> FrontierView | None:
    """Return the section about the second score; None if the recipe has none, or nothing is confirmed."""
    begin = frontier.start(summary)
    if summary.also is None or begin is None:
        return None
    places = formatting.decimals(also.se for _, also in frontier.both_scores(summary).values())
    up = "up" if summary.also.higher_is_better else "down"
    right = "right" if summary.higher_is_better else "left"
    return FrontierView(
        also=summary.also.name,
        unit=f" ({summary.also.unit})" if summary.also.unit else "",
        better=f"better is {up} and {right}",
        start=f"{summary.metric} {begin[0]:.{places}f}, {summary.also.name} {begin[1]:.{places}f}",
        figure=drawn(figure(summary, prefix)),
        equal=[_equal_table(level) for level in frontier.at_equal_score(summary)],
    )


def _equal_table(level: frontier.Level) -> EqualTable:
    intervals = [estimate.interval for estimate in level.estimates]
    places = formatting.interval_decimals(interval or (None, None) for interval in intervals)
    rows = []
    for estimate in level.estimates:
        if estimate.value is None:
            rows.append(EqualRow(estimate.optimizer, "not reached", DASH, DASH, DASH))
            continue
        difference = estimate.difference
        rows.append(
            EqualRow(
                estimate.optimizer,
                f"{estimate.value:.{places}f}".replace("-", formatting.MINUS),
                _interval(estimate.interval, places, signed=False),
                DASH if difference is None else formatting.signed(difference, places),
                _interval(estimate.difference_interval, places, signed=True),
            )
        )
    return EqualTable(f"{level.metric:.{places}f}", level.reached_by, level.seeds, rows)


def _interval(interval: tuple[float, float] | None, places: int, *, signed: bool) -> str:
    if interval is None:
        return DASH
    if signed:
        return " to ".join(formatting.signed(end, places) for end in interval)
    return " to ".join(f"{end:.{places}f}".replace("-", formatting.MINUS) for end in interval)


def figure(summary: Summary, prefix: str = "frontier") -> str:
    """Draw the second score against the metric: a dot for each grid point, a line for each frontier.

    Dots off the frontier are pale, the chosen setting has a ring. Those that forget far more than any
    frontier are outside the frame.
    """
    names = [name for name in verdict.rank(summary) if name in summary.optimizers]
    look = {name: looks(summary.optimizers)[name] for name in names}

    def draw(axes: Axes) -> None:
        draw_frontiers(axes, summary, look)

    label = f"{summary.also.name if summary.also else ''} against {summary.metric}"
    return svg(draw, prefix, label, height=300)


def draw_frontiers(axes: Axes, summary: Summary, look: dict[str, int]) -> None:
    """Draw dots, frontiers and the start into axes."""
    begin, also = frontier.start(summary), summary.also
    if begin is None or also is None:
        return
    found, shown = frontier.dots(summary), [begin]
    for name in reversed(look):  # the best on top
        color, i = LIGHT[look[name]], look[name]
        on = sorted((d.metric.mean, d.also.mean) for d in found[name] if d.on_line)
        off = [(d.metric.mean, d.also.mean) for d in found[name] if not d.on_line]
        shown += on
        with belonging(axes, i):
            axes.plot(
                [x for x, _ in off], [y for _, y in off], MARKERS[i], color=color, alpha=0.35, markersize=4.5
            )
            axes.plot([x for x, _ in on], [y for _, y in on], color=color, dashes=dash(i), linewidth=1.6)
            axes.plot([x for x, _ in on], [y for _, y in on], MARKERS[i], color=color, markersize=6.5)
            for d in found[name]:
                if d.point == summary.optimizers[name].chosen.point:
                    x, y = d.metric.mean, d.also.mean
                    axes.plot([x], [y], "o", mfc="none", mec=INK, markersize=13, mew=1.1)
                if d.on_line and d.metric.se is not None and d.also.se is not None:
                    x, y = d.metric.mean, d.also.mean
                    axes.errorbar(x, y, d.also.se, d.metric.se, color=color, linewidth=1.0, fmt="none")
    axes.plot(*begin, "*", color=INK, markersize=13, zorder=5)
    axes.annotate(START, begin, xytext=(-6, -18), textcoords="offset points", color=INK)
    for k, set_limits in ((0, axes.set_xlim), (1, axes.set_ylim)):
        values = [pair[k] for pair in shown]
        margin = 0.06 * (max(values) - min(values)) or 0.1
        set_limits(min(values) - margin, max(values) + margin)
    axes.set_xlabel(wrapped(f"validation {summary.metric}{_unit(summary.unit)}", 36))
    axes.set_ylabel(wrapped(f"validation {also.name}{_unit(also.unit)}", 26))


def _unit(unit: str) -> str:
    return f" ({unit})" if unit else ""
