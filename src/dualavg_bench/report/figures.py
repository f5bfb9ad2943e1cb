"""The figures of the pages: pure functions of a summary to SVG."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dualavg_bench.analysis.statistics import describe, is_significant
from dualavg_bench.analysis.verdict import rank
from dualavg_bench.report.drawing import (
    INK,
    LIGHT,
    MARKERS,
    dash,
    edge_marks,
    is_outside,
    labels,
    lanes,
    log_ticks,
    looks,
    make_room,
    set_scale,
    svg,
    wrapped,
)
from dualavg_bench.store.summaries import Cost, GridPoint, Scores, Spread, Summary

REACH = 5  # scores further from the best than this many times the median are drawn at the edge of the frame
LABEL_HEIGHT, LABEL_WIDTH = 30, 46  # letters of a label that fit beside and below the frame


def training_curves(summary: Summary, prefix: str = "train") -> str:
    """Training loss at the chosen settings: mean and s.e. over seeds; a diverged run ends in a cross."""
    return _curves(summary, prefix, "train", "loss", "training loss", log=True)


def validation_curves(summary: Summary, prefix: str = "valid") -> str:
    """The metric on validation, in the same way."""
    label = f"validation {_metric_label(summary)}"
    return _curves(summary, prefix, "valid", summary.metric, label, log=not summary.higher_is_better)


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

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        lrs = [point.lr for points in grids.values() for point in points] or [1.0]
        margin = max(max(lrs) / min(lrs), 2.0) ** 0.06
        axes.set_xlim(min(lrs) / margin, max(lrs) * margin)
        finished = [point for points in grids.values() for point in points if not point.diverged]
        winners = [best.valid for best in chosen.values() if not best.valid.diverged]
        means = {best.mean for best in winners} | set(_near_best([point.mean for point in finished], sign))
        set_scale(axes, _with_bars(means, [*finished, *winners]), log=sign < 0)
        marked = [any(p.diverged or is_outside(axes, p.mean) for p in points) for points in grids.values()]
        make_room(axes, sign, sum(marked))
        heights, (edge, caret) = lanes(axes, sign), edge_marks(sign)
        for name, points in grids.items():
            color, marker = LIGHT[look[name]], MARKERS[look[name]]
            best_at: dict[float, GridPoint] = {}
            for point in sorted(points, key=lambda point: (point.diverged > 0, -sign * point.mean)):
                best_at.setdefault(point.lr, point)
            line = [best_at[lr] for lr in sorted(best_at) if not best_at[lr].diverged]
            others = [point for point in points if not point.diverged and best_at[point.lr] is not point]
            axes.plot(*_coordinates(line), color=color, dashes=dash(look[name]))
            inside = [point for point in line if not is_outside(axes, point.mean)]
            bars = [point.se or 0.0 for point in inside]
            axes.errorbar(*_coordinates(inside), bars, fmt=marker, color=color, markersize=6, linewidth=1.2)
            axes.plot(*_coordinates(others), marker, color=color, alpha=0.4, markersize=4)
            diverged = sorted({point.lr for point in points if point.diverged})
            outside = sorted({point.lr for point in [*line, *others] if is_outside(axes, point.mean)})
            if diverged or outside:
                lane = next(heights)
                hollow: dict[str, Any] = {"mfc": "none", "color": color, "markersize": 8}
                axes.plot(outside, [edge] * len(outside), caret, **hollow, **lane)
                axes.plot(diverged, [edge] * len(diverged), "x", color=color, markersize=9, mew=2.2, **lane)
            best = chosen[name]
            ring: dict[str, Any] = {"mfc": "none", "mec": INK, "markersize": 13, "mew": 1.1}
            if best.valid.diverged and diverged:
                axes.plot([best.lr], [edge], "o", **ring, **lane)
            else:
                axes.plot([best.lr], [best.valid.mean], "o", **ring)
        axes.set_xlabel("step size (lr)")
        axes.set_ylabel(wrapped(f"validation {_metric_label(summary)}", LABEL_HEIGHT))
        log_ticks(axes.xaxis, axes.get_xlim())

    return svg(draw, prefix, look, f"Validation {summary.metric} against step size", markers=True)


def budget(summary: Summary, prefix: str = "budget") -> str:
    """Expected best validation score against the number of grid points tried.

    A diverged point counts as the untrained network, so the first scores may be far worse than the others:
    those become hollow carets at the worst end, as in the sensitivity figure.
    """
    look, sign = _ranked_looks(summary), summary.sign
    curves = {name: summary.budget[name].scores for name in look}

    def draw(axes: Axes) -> None:
        scores = [value for curve in curves.values() for value in curve]
        ends = [curve[-1] for curve in curves.values()]  # always shown
        set_scale(axes, [*_near_best(scores, sign), *ends], log=sign < 0)
        outside = {
            name: [m for m, value in enumerate(curve, 1) if is_outside(axes, value)]
            for name, curve in curves.items()
        }
        make_room(axes, sign, sum(map(bool, outside.values())))
        heights, (edge, caret) = lanes(axes, sign), edge_marks(sign)
        for name, curve in curves.items():
            color, inside = LIGHT[look[name]], [m for m in range(1, len(curve) + 1) if m not in outside[name]]
            axes.plot(range(1, len(curve) + 1), curve, color=color, dashes=dash(look[name]))
            axes.plot(
                inside, [curve[m - 1] for m in inside], MARKERS[look[name]], color=color, markersize=4.5
            )
            if outside[name]:
                hollow: dict[str, Any] = {"mfc": "none", "color": color, "markersize": 8}
                axes.plot(outside[name], [edge] * len(outside[name]), caret, **hollow, **next(heights))
        axes.set_xlabel("grid points tried")
        axes.set_ylabel(wrapped(f"expected {_metric_label(summary)}", LABEL_HEIGHT))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

    return svg(draw, prefix, look, "Expected best validation score against tuning budget", markers=True)


def differences(summary: Summary, prefix: str = "differences") -> str:
    """Paired differences in test score with 95% intervals; filled if significant."""
    pairs = summary.comparisons

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=INK, linewidth=1.0)
        short = labels(summary.optimizers, 24)
        names = []
        for row, pair in enumerate(pairs):
            significant = is_significant(pair.p_holm)
            if pair.low is not None and pair.high is not None:
                width = 2.2 if significant else 1.2
                axes.plot([pair.low, pair.high], [row, row], color=INK, linewidth=width)
            fill = INK if significant else "none"
            axes.plot(pair.difference, row, "o", mfc=fill, mec=INK, markersize=7)
            a, b = short[pair.a], short[pair.b]
            names.append(f"{a} \N{MINUS SIGN}{chr(10) if len(a + b) > 22 else ' '}{b}")
        _name_rows(axes, names)
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=5)  # long names leave little room for numbers
        unit = " (points)" if summary.unit == "%" else f" ({summary.unit})" if summary.unit else ""
        axes.set_xlabel(wrapped(f"difference in test {summary.metric}{unit}", LABEL_WIDTH))

    return svg(draw, prefix, {}, "Paired differences in test score", height=1.1 + 0.42 * len(pairs))


def step_time(summary: Summary, prefix: str = "time") -> str:
    """Median time of a step, with the optimizer's part hatched."""
    return _bars(
        summary, prefix, "time per step (ms)", lambda cost: cost.step_ms, lambda cost: cost.optimizer_ms
    )


def memory(summary: Summary, prefix: str = "memory") -> str:
    """Median peak memory."""
    return _bars(summary, prefix, "peak memory (MB)", lambda cost: cost.peak_mb, lambda _: None)


def _curves(
    summary: Summary,
    prefix: str,
    split: Literal["train", "valid"],
    series: str,
    label: str,
    *,
    log: bool,
) -> str:
    look = _ranked_looks(summary)
    confirmed = [(summary.runs[name], getattr(both, split)) for name, both in summary.curves.items()]
    confirmed.sort(key=lambda item: (item[0].optimizer, item[0].seed))

    def draw(axes: Axes) -> None:
        shown: list[float] = []
        for name, i in look.items():
            curves = [curve for run, curve in confirmed if run.optimizer == name and not run.diverged]
            by_step = [dict(zip(curve.step, curve[series], strict=True)) for curve in curves]
            steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
            points = [describe(values[step] for values in by_step) for step in steps]
            low = [point.mean - (point.se or 0.0) for point in points]
            high = [point.mean + (point.se or 0.0) for point in points]
            axes.fill_between(steps, low, high, color=LIGHT[i], alpha=0.22, linewidth=0)
            axes.plot(steps, [point.mean for point in points], color=LIGHT[i], dashes=dash(i))
            # Not the first tenth of training, whose fall would flatten the rest.
            late = [k for k, step in enumerate(steps) if step >= steps[-1] / 10]
            shown += [value for k in late for value in (low[k], high[k])]
        drawn = [value for _, curve in confirmed for value in curve[series]]
        set_scale(axes, shown or drawn, log=log and min(drawn, default=0.0) > 0)
        bottom, top = axes.get_ylim()
        for run, curve in confirmed:
            if run.diverged:
                color = LIGHT[look[run.optimizer]]
                axes.plot(curve.step, curve[series], color=color, linewidth=0.9)
                end = [min(max(value, bottom), top) for value in curve[series][-1:]]
                cross: dict[str, Any] = {"markersize": 9, "mew": 2.2, "clip_on": False, "zorder": 5}
                axes.plot(curve.step[-1:], end, "x", color=color, **cross)
        axes.set_xlabel("step")
        axes.set_ylabel(wrapped(label, LABEL_HEIGHT))

    return svg(draw, prefix, look, label.capitalize() + " against step")


def _bars(
    summary: Summary,
    prefix: str,
    label: str,
    length: Callable[[Cost], Spread | None],
    hatched: Callable[[Cost], Spread | None],
) -> str:
    look, costs = looks(summary.optimizers), summary.times.optimizers
    bars = {name: bar for name in rank(summary) if (bar := length(costs[name]))}
    limit = 1.5 * max((bar.median for bar in bars.values()), default=1.0)

    def draw(axes: Axes) -> None:
        for row, (name, bar) in enumerate(bars.items()):
            axes.barh(row, bar.median, height=0.55, color=LIGHT[look[name]], alpha=0.75)
            if part := hatched(costs[name]):
                axes.barh(row, part.median, height=0.55, fill=False, hatch="////", edgecolor=INK)
            end = _draw_spread(axes, row, bar, limit)
            text = f"{bar.median:.3g} (n = {bar.n})"
            axes.annotate(text, (end, row), xytext=(6, 0), textcoords="offset points", va="center")
        short = labels(summary.optimizers, 24)
        _name_rows(axes, [short[name] for name in bars])
        axes.set_xlim(0, 1.45 * max((min(bar.high, limit) for bar in bars.values()), default=1.0))
        axes.set_xlabel(label)

    return svg(draw, prefix, {}, label.capitalize(), height=1.1 + 0.42 * len(bars))


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
