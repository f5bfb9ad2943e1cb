"""The figures of the pages: pure functions of a summary to SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dualavg_bench.analysis.formatting import counted, decimals, plain, with_error
from dualavg_bench.analysis.statistics import describe, is_significant
from dualavg_bench.analysis.verdict import places, rank
from dualavg_bench.report.drawing import (
    INK,
    LIGHT,
    MARKERS,
    Series,
    Value,
    belonging,
    dash,
    edge_marks,
    is_outside,
    labels,
    lanes,
    log_ticks,
    looks,
    make_room,
    set_scale,
    spans_decades,
    svg,
    wrapped,
)
from dualavg_bench.store.summaries import GridPoint, Scores, Spread, Statistics, Summary

REACH = 5  # scores further from the best than this many times the median are drawn at the edge of the frame
LABEL_HEIGHT, LABEL_WIDTH = 26, 36  # letters of a label that fit beside and below the frame


@dataclass(frozen=True)
class Plot:
    """A figure with one kind of y axis; a page can switch between two of them."""

    scale: Literal["linear", "log"]
    svg: str


def training_curves(summary: Summary, prefix: str = "train") -> list[Plot]:
    """Training loss at the chosen settings: mean and s.e. over seeds; a diverged run ends in a cross."""
    return _curves(summary, prefix, "train", "loss", "training loss", ratios=True)


def validation_curves(summary: Summary, prefix: str = "valid") -> list[Plot]:
    """The metric on validation, in the same way."""
    label = f"validation {_metric_label(summary)}"
    return _curves(summary, prefix, "valid", summary.metric, label, ratios=not summary.higher_is_better)


def worst_end(summary: Summary) -> str:
    """Return the end of the y axis with the worst scores. What does not fit the frame is marked there."""
    return "bottom" if summary.higher_is_better else "top"


def sensitivity(summary: Summary, prefix: str = "sensitivity") -> str:
    """Validation score against step size, with a line through the best of each step size.

    A point far worse than the others would flatten them: it becomes a hollow caret at the worst end.
    Crosses mark diverged points there, at a separate height for each optimizer.
    """
    look, sign = _ranked_looks(summary), summary.sign
    grids = {name: [point for point in summary.sensitivity[name] if point.lr > 0] for name in look}
    chosen = {name: summary.optimizers[name].chosen for name in look}

    def draw(axes: Axes) -> list[Series]:
        axes.set_xscale("log")
        lrs = [point.lr for points in grids.values() for point in points] or [1.0]
        margin = max(max(lrs) / min(lrs), 2.0) ** 0.06
        axes.set_xlim(min(lrs) / margin, max(lrs) * margin)
        finished = [point for points in grids.values() for point in points if not point.diverged]
        winners = [best.valid for best in chosen.values() if not best.valid.diverged]
        means = {best.mean for best in winners} | set(_near_best([point.mean for point in finished], sign))
        shown = _with_bars(means, [*finished, *winners])
        set_scale(axes, shown, log=sign < 0 and spans_decades(shown))
        marked = [any(p.diverged or is_outside(axes, p.mean) for p in points) for points in grids.values()]
        make_room(axes, sign, sum(marked))
        heights, (edge, caret) = lanes(axes, sign), edge_marks(sign)
        for name, points in grids.items():
            with belonging(axes, look[name]):
                color, marker = LIGHT[look[name]], MARKERS[look[name]]
                best_at: dict[float, GridPoint] = {}
                for point in sorted(points, key=lambda point: (point.diverged > 0, -sign * point.mean)):
                    best_at.setdefault(point.lr, point)
                line = [best_at[lr] for lr in sorted(best_at) if not best_at[lr].diverged]
                others = [point for point in points if not point.diverged and best_at[point.lr] is not point]
                axes.plot(*_coordinates(line), color=color, dashes=dash(look[name]))
                inside = [point for point in line if not is_outside(axes, point.mean)]
                bars = [point.se or 0.0 for point in inside]
                axes.errorbar(
                    *_coordinates(inside), bars, fmt=marker, color=color, markersize=6, linewidth=1.2
                )
                axes.plot(*_coordinates(others), marker, color=color, alpha=0.4, markersize=4)
                diverged = sorted({point.lr for point in points if point.diverged})
                outside = sorted({point.lr for point in [*line, *others] if is_outside(axes, point.mean)})
                if diverged or outside:
                    lane = next(heights)
                    hollow: dict[str, Any] = {"mfc": "none", "color": color, "markersize": 8}
                    axes.plot(outside, [edge] * len(outside), caret, **hollow, **lane)
                    axes.plot(
                        diverged, [edge] * len(diverged), "x", color=color, markersize=9, mew=2.2, **lane
                    )
                best = chosen[name]
                ring: dict[str, Any] = {"mfc": "none", "mec": INK, "markersize": 13, "mew": 1.1}
                if best.valid.diverged and diverged:
                    axes.plot([best.lr], [edge], "o", **ring, **lane)
                else:
                    axes.plot([best.lr], [best.valid.mean], "o", **ring)
        axes.set_xlabel("step size (lr)")
        axes.set_ylabel(wrapped(f"validation {_metric_label(summary)}", LABEL_HEIGHT))
        log_ticks(axes.xaxis, axes.get_xlim())
        return [Series(look[name], name, [_grid_value(summary, p) for p in grids[name]]) for name in grids]

    return svg(draw, prefix, f"Validation {summary.metric} against step size")


def _grid_value(summary: Summary, point: GridPoint) -> Value:
    score = "diverged" if point.diverged else with_error(point, places(summary))
    return Value(
        point.lr,
        point.mean,
        f"lr {point.lr:g}",
        f"{score}, weight decay {point.weight_decay:g}, {point.schedule} (n = {point.n})",
    )


def budget(summary: Summary, prefix: str = "budget") -> str:
    """Expected best validation score against the number of grid points tried.

    A diverged point counts as the untrained network, so the first scores may be far worse than the others:
    those become hollow carets at the worst end, as in the sensitivity figure.
    """
    look, sign = _ranked_looks(summary), summary.sign
    curves = {name: summary.budget[name].scores for name in look}

    def draw(axes: Axes) -> list[Series]:
        scores = [value for curve in curves.values() for value in curve]
        ends = [curve[-1] for curve in curves.values()]  # always shown
        shown = [*_near_best(scores, sign), *ends]
        set_scale(axes, shown, log=sign < 0 and spans_decades(shown))
        outside = {
            name: [m for m, value in enumerate(curve, 1) if is_outside(axes, value)]
            for name, curve in curves.items()
        }
        make_room(axes, sign, sum(map(bool, outside.values())))
        heights, (edge, caret) = lanes(axes, sign), edge_marks(sign)
        for name, curve in curves.items():
            color, inside = LIGHT[look[name]], [m for m in range(1, len(curve) + 1) if m not in outside[name]]
            with belonging(axes, look[name]):
                axes.plot(range(1, len(curve) + 1), curve, color=color, dashes=dash(look[name]))
                axes.plot(
                    inside, [curve[m - 1] for m in inside], MARKERS[look[name]], color=color, markersize=4.5
                )
                if outside[name]:
                    hollow: dict[str, Any] = {"mfc": "none", "color": color, "markersize": 8}
                    axes.plot(outside[name], [edge] * len(outside[name]), caret, **hollow, **next(heights))
        axes.set_xlabel("settings tried")
        axes.set_ylabel(wrapped(f"expected {_metric_label(summary)}", LABEL_HEIGHT))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        digits = places(summary)
        return [
            Series(
                look[name],
                name,
                [Value(m, y, counted(m, "setting"), plain(y, digits)) for m, y in enumerate(curve, 1)],
            )
            for name, curve in curves.items()
        ]

    return svg(draw, prefix, "Expected best validation score against the number of settings tried")


def differences(summary: Summary, prefix: str = "differences") -> str:
    """By how much the first of each pair is better, with 95% intervals; filled if certain to 95%."""
    pairs, sign = summary.comparisons, summary.sign

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=INK, linewidth=1.0)
        short = labels(summary.optimizers, 20)
        names = []
        for row, pair in enumerate(pairs):
            certain = is_significant(pair.p_holm)
            if pair.low is not None and pair.high is not None:
                ends = [sign * pair.low, sign * pair.high]
                axes.plot(ends, [row, row], color=INK, linewidth=2.2 if certain else 1.2)
            axes.plot(sign * pair.difference, row, "o", mfc=INK if certain else "none", mec=INK, markersize=7)
            a, b = short[pair.a], short[pair.b]
            names.append(f"{a} over{chr(10) if len(a + b) > 14 else ' '}{b}")
        _name_rows(axes, names)
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=4)  # long names leave little room for numbers
        unit = " (points)" if summary.unit == "%" else f" ({summary.unit})" if summary.unit else ""
        axes.set_xlabel(wrapped(f"better in test {summary.metric}{unit}", LABEL_WIDTH))

    return svg(draw, prefix, "How much better the first of each pair is", height=70 + 34 * len(pairs))


def step_time(summary: Summary, prefix: str = "time") -> str:
    """Median time of a step over runs, with the optimizer's part hatched."""
    look, costs = looks(summary.optimizers), summary.times.optimizers
    bars = {name: bar for name in rank(summary) if (bar := costs[name].step_ms)}
    limit = 1.5 * max((bar.median for bar in bars.values()), default=1.0)

    def draw(axes: Axes) -> None:
        for row, (name, bar) in enumerate(bars.items()):
            axes.barh(row, bar.median, height=0.55, color=LIGHT[look[name]], alpha=0.75)
            if part := costs[name].optimizer_ms:
                axes.barh(row, part.median, height=0.55, fill=False, hatch="////", edgecolor=INK)
            end = _draw_spread(axes, row, bar, limit)
            text = f"{bar.median:.3g} (n = {bar.n})"
            axes.annotate(text, (end, row), xytext=(6, 0), textcoords="offset points", va="center")
        short = labels(summary.optimizers, 20)
        _name_rows(axes, [short[name] for name in bars])
        axes.set_xlim(0, 1.55 * max((min(bar.high, limit) for bar in bars.values()), default=1.0))
        axes.set_xlabel("time per step (ms)")

    return svg(draw, prefix, "Time per step (ms)", height=70 + 34 * len(bars))


def _curves(
    summary: Summary,
    prefix: str,
    split: Literal["train", "valid"],
    series: str,
    label: str,
    *,
    ratios: bool,
) -> list[Plot]:
    """Return the figure with its default axis first, and with the other one if all values are positive.

    The default is a log axis if values are read by their ratios and are far apart.
    """
    look = _ranked_looks(summary)
    confirmed = [(summary.runs[name], getattr(both, split)) for name, both in summary.curves.items()]
    confirmed.sort(key=lambda item: (item[0].optimizer, item[0].seed))
    means: dict[str, list[tuple[int, Statistics]]] = {}
    shown: list[float] = []
    for name in look:
        curves = [curve for run, curve in confirmed if run.optimizer == name and not run.diverged]
        by_step = [dict(zip(curve.step, curve[series], strict=True)) for curve in curves]
        steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
        means[name] = [(step, describe(values[step] for values in by_step)) for step in steps]
        # Not the first tenth of training, whose fall would flatten the rest.
        late = [point for step, point in means[name] if step >= steps[-1] / 10]
        shown += [end for point in late for end in _ends(point)]
    drawn = [value for _, curve in confirmed for value in curve[series]]
    shown = shown or drawn
    digits = decimals(point.se for points in means.values() for _, point in points)

    def draw(axes: Axes, *, log: bool) -> list[Series]:
        set_scale(axes, shown, log=log)
        bottom, top = axes.get_ylim()
        for name, i in look.items():
            with belonging(axes, i):
                steps = [step for step, _ in means[name]]
                ends = [_ends(point) for _, point in means[name]]
                low, high = [end[0] for end in ends], [end[1] for end in ends]
                axes.fill_between(steps, low, high, color=LIGHT[i], alpha=0.22, linewidth=0)
                axes.plot(steps, [point.mean for _, point in means[name]], color=LIGHT[i], dashes=dash(i))
                for run, curve in confirmed:
                    if run.optimizer == name and run.diverged:
                        axes.plot(curve.step, curve[series], color=LIGHT[i], linewidth=0.9)
                        end = [min(max(value, bottom), top) for value in curve[series][-1:]]
                        cross: dict[str, Any] = {"markersize": 9, "mew": 2.2, "clip_on": False, "zorder": 5}
                        axes.plot(curve.step[-1:], end, "x", color=LIGHT[i], **cross)
        axes.set_ylim(bottom, top)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlabel("step")
        axes.set_ylabel(wrapped(label, LABEL_HEIGHT))
        return [
            Series(
                look[name],
                name,
                [Value(step, p.mean, f"step {step:,}", with_error(p, digits)) for step, p in points],
            )
            for name, points in means.items()
        ]

    positive = min([*drawn, *shown], default=0.0) > 0
    log = ratios and positive and spans_decades(shown)
    title = label.capitalize() + " against step"
    plots = [Plot("log" if log else "linear", svg(partial(draw, log=log), prefix, title))]
    if positive:
        other = svg(partial(draw, log=not log), f"{prefix}-other", title)
        plots.append(Plot("linear" if log else "log", other))
    return plots


def _ends(point: Statistics) -> tuple[float, float]:
    se = point.se or 0.0
    return point.mean - se, point.mean + se


def _draw_spread(axes: Axes, row: int, bar: Spread, limit: float) -> float:
    """Draw quartiles and range; a range beyond the limit would flatten all bars, and ends in an arrow."""
    end = min(bar.high, limit)
    axes.plot([bar.low, end], [row, row], color=INK, linewidth=1.1, solid_capstyle="butt")
    axes.plot([bar.lower, min(bar.upper, end)], [row, row], color=INK, linewidth=4.5, solid_capstyle="butt")
    if bar.high > limit:
        axes.plot(end, row, ">", color=INK, markersize=6)
    return end


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a figure from top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _ranked_looks(summary: Summary) -> dict[str, int]:
    look = looks(summary.optimizers)
    return {name: look[name] for name in rank(summary)}


def _coordinates(points: Sequence[GridPoint]) -> tuple[list[float], list[float]]:
    return [point.lr for point in points], [point.mean for point in points]


def _near_best(values: Sequence[float], sign: int) -> list[float]:
    """Return the values from the best to `REACH` times as far from it as the median."""
    ranked = sorted(values, key=lambda value: -sign * value)
    reach = REACH * abs(ranked[len(ranked) // 2] - ranked[0]) if ranked else 0.0
    return [value for value in ranked if abs(value - ranked[0]) <= reach]


def _with_bars(means: set[float], points: Sequence[Scores]) -> list[float]:
    """Return means and the ends of their error bars, cut off where they would double the range."""
    bars = [(point.mean, point.se or 0.0) for point in points if point.mean in means]
    reach = (max(means) - min(means)) / 2 if len(means) > 1 else math.inf
    low, high = (min(means) - reach, max(means) + reach) if means else (0.0, 0.0)
    return [*means, *(max(mean - se, low) for mean, se in bars), *(min(mean + se, high) for mean, se in bars)]


def _metric_label(summary: Summary) -> str:
    return f"{summary.metric} ({summary.unit})" if summary.unit else summary.metric
