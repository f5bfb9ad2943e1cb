"""The figures of the report: pure functions of a summary (and runs) to SVG text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from dualavg_bench.analysis import statistics, verdict
from dualavg_bench.report.drawing import INK, LIGHT, MARKERS, dash, fitted, labels, looks, svg

Summary = Mapping[str, Any]

REACH = 5  # so that the better half of the points has at least a fifth of the sensitivity plot
LANE = 9  # points between the crosses of two optimizers
HEIGHT = 180  # points of a plot's frame, about
TALL, WIDE = 30, 46  # letters of a label that fit beside a frame and below it


def training_curves(summary: Summary, runs: Sequence[statistics.Run], prefix: str = "train") -> str:
    """Training loss of the chosen settings: mean and s.e. over seeds; each diverged run ends in a cross."""
    return _curves(summary, runs, prefix, ("train", "loss"), "training loss", log=True)


def validation_curves(summary: Summary, runs: Sequence[statistics.Run], prefix: str = "valid") -> str:
    """The same of the declared metric on validation."""
    series, label = ("valid", summary["metric"]), f"validation {_labelled(summary)}"
    return _curves(summary, runs, prefix, series, label, log=not summary["higher_is_better"])


def worst_end(summary: Summary) -> str:
    """Which end of a plot the worst scores are at, where marks of what cannot be drawn stand."""
    return "bottom" if summary["higher_is_better"] else "top"


def sensitivity(summary: Summary, prefix: str = "sensitivity") -> str:
    """Validation score against step size: the best of each step size joined, diverged points crossed.

    A point far worse than the better ones would flatten them all: it is a hollow caret at the worst end, as
    are the crosses, each optimizer's at a height of its own.
    """
    look, sign = _ranked_looks(summary), 1 if summary["higher_is_better"] else -1
    grids = {name: [p for p in summary["sensitivity"][name] if p["lr"] > 0] for name in look}
    chosen = {name: summary["optimizers"][name]["chosen"] for name in look}

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        lrs = [p["lr"] for points in grids.values() for p in points] or [1.0]
        pad = max(max(lrs) / min(lrs), 2.0) ** 0.06
        axes.set_xlim(min(lrs) / pad, max(lrs) * pad)  # marks at the axis do not widen it
        sound = [p for points in grids.values() for p in points if not p["diverged"]]
        winners = [c["valid"] for c in chosen.values() if not c["valid"]["diverged"]]
        means = {p["mean"] for p in winners} | set(_better([p["mean"] for p in sound], sign))
        _scale(axes, _with_bars(means, sound + winners), log=sign < 0)
        outside = {n: any(p["diverged"] or _beyond(axes, p) for p in grid) for n, grid in grids.items()}
        _make_room(axes, sign, (sum(outside.values()) + 0.5) * LANE / HEIGHT if any(outside.values()) else 0)
        lanes, (edge, away) = _lanes(axes, sign), (0, "v") if sign > 0 else (1, "^")
        for name, points in grids.items():
            color, marker = LIGHT[look[name]], MARKERS[look[name]]
            best: dict[float, Mapping[str, Any]] = {}
            for point in sorted(points, key=lambda p: (p["diverged"] > 0, -sign * p["mean"])):
                best.setdefault(point["lr"], point)
            line = [best[lr] for lr in sorted(best) if not best[lr]["diverged"]]
            rest = [p for p in points if not p["diverged"] and best[p["lr"]] is not p]
            axes.plot(
                [p["lr"] for p in line], [p["mean"] for p in line], color=color, dashes=dash(look[name])
            )
            seen = [p for p in line if not _beyond(axes, p)]
            x, y, se = ([p[key] or 0.0 for p in seen] for key in ("lr", "mean", "se"))
            axes.errorbar(x, y, se, fmt=marker, color=color, markersize=6, linewidth=1.2)
            pale: dict[str, Any] = {"color": color, "alpha": 0.4, "markersize": 4}
            axes.plot([p["lr"] for p in rest], [p["mean"] for p in rest], marker, **pale)
            lost = sorted({p["lr"] for p in points if p["diverged"]})
            far = sorted({p["lr"] for p in line + rest if _beyond(axes, p)})
            if lost or far:
                lane = next(lanes)
                axes.plot(far, [edge] * len(far), away, mfc="none", color=color, markersize=8, **lane)
                axes.plot(lost, [edge] * len(lost), "x", color=color, markersize=9, mew=2.2, **lane)
            ring: dict[str, Any] = {"mfc": "none", "mec": INK, "markersize": 13, "mew": 1.1}
            if chosen[name]["valid"]["diverged"] and lost:
                axes.plot([chosen[name]["lr"]], [edge], "o", **ring, **lane)
            else:
                axes.plot([chosen[name]["lr"]], [chosen[name]["valid"]["mean"]], "o", **ring)
        axes.set_xlabel("step size (lr)")
        axes.set_ylabel(fitted(f"validation {_labelled(summary)}", TALL))
        _log_ticks(axes.xaxis, axes.get_xlim())

    return svg(draw, prefix, look, f"Validation {summary['metric']} against step size", marked=True)


def budget(summary: Summary, prefix: str = "budget") -> str:
    """Expected best validation score against the number of grid points tried.

    Diverged points are worth what the untrained network is, and so may be the first expectations: what is far
    worse than the better ones is a hollow caret at the worst end, as in the sensitivity figure.
    """
    look, sign = _ranked_looks(summary), 1 if summary["higher_is_better"] else -1
    curves = {name: _budget_scores(summary["budget"][name]) for name in look}

    def draw(axes: Axes) -> None:
        values = _better([value for scores in curves.values() for value in scores], sign)
        ends = [scores[-1] for scores in curves.values()]  # what tuning came to is always shown
        _scale(axes, [*values, *ends], log=sign < 0)
        outside = {n: [m for m, y in enumerate(s, 1) if _outside(axes, y)] for n, s in curves.items()}
        _make_room(
            axes,
            sign,
            (sum(map(bool, outside.values())) + 0.5) * LANE / HEIGHT if any(outside.values()) else 0,
        )
        lanes, (edge, away) = _lanes(axes, sign), (0, "v") if sign > 0 else (1, "^")
        for name, scores in curves.items():
            color, shown = LIGHT[look[name]], [m for m in range(1, len(scores) + 1) if m not in outside[name]]
            axes.plot(range(1, len(scores) + 1), scores, color=color, dashes=dash(look[name]))
            axes.plot(shown, [scores[m - 1] for m in shown], MARKERS[look[name]], color=color, markersize=4.5)
            if far := outside[name]:
                style: dict[str, Any] = {"mfc": "none", "color": color, "markersize": 8}
                axes.plot(far, [edge] * len(far), away, **style, **next(lanes))
        axes.set_xlabel("grid points tried")
        axes.set_ylabel(fitted(f"expected {_labelled(summary)}", TALL))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

    return svg(draw, prefix, look, "Expected best validation score against tuning budget", marked=True)


def differences(summary: Summary, prefix: str = "differences") -> str:
    """Paired test differences with 95% intervals, the better optimizer first."""
    pairs = summary["comparisons"]

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=INK, linewidth=1.0)
        for row, pair in enumerate(pairs):
            firm = verdict.distinguishable(pair)
            if pair["low"] is not None:
                axes.plot([pair["low"], pair["high"]], [row, row], color=INK, linewidth=2.2 if firm else 1.2)
            axes.plot(pair["difference"], row, "o", mfc=INK if firm else "none", mec=INK, markersize=7)
        short = labels(summary["optimizers"], 24)
        names = [(short[pair["a"]], short[pair["b"]]) for pair in pairs]
        breaks = ["\n" if len(a + b) > 22 else " " for a, b in names]
        rows = [f"{a} \N{MINUS SIGN}{gap}{b}" for (a, b), gap in zip(names, breaks, strict=True)]
        axes.set_yticks(range(len(pairs)), rows)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=5)  # long names leave little room for numbers
        axes.tick_params(axis="y", length=0)
        unit = " (points)" if summary["unit"] == "%" else f" ({summary['unit']})" if summary["unit"] else ""
        axes.set_xlabel(fitted(f"difference in test {summary['metric']}{unit}", WIDE))

    return svg(draw, prefix, {}, "Paired differences in test score", height=1.1 + 0.42 * len(pairs))


def step_time(summary: Summary, prefix: str = "time") -> str:
    """Median time of a step, the optimizer's own share of it hatched."""
    return _bars(summary, prefix, "step_ms", "time per step (ms)", share="optimizer_ms")


def memory(summary: Summary, prefix: str = "memory") -> str:
    """Median peak memory."""
    return _bars(summary, prefix, "peak_mb", "peak memory (MB)")


def _budget_scores(entry: Any) -> list[float]:
    """The curve of an optimizer; older summaries have nothing but that."""
    scores: list[float] = entry["scores"] if isinstance(entry, Mapping) else entry
    return scores


def _ranked_looks(summary: Summary) -> dict[str, int]:
    look = looks(summary["optimizers"])
    return {name: look[name] for name in verdict.rank(summary)}


def _curves(
    summary: Summary,
    runs: Sequence[statistics.Run],
    prefix: str,
    series: tuple[str, str],
    label: str,
    *,
    log: bool,
) -> str:
    split, key = series
    look = _ranked_looks(summary)
    confirmed = sorted(
        (r for r in runs if r["phase"] == "confirm"), key=lambda r: (r["optimizer"], r["seed"])
    )

    def draw(axes: Axes) -> None:
        shown: list[float] = []
        for name, i in look.items():
            mine = [run for run in confirmed if run["optimizer"] == name]
            sound = [run[split] for run in mine if run["status"] != "diverged"]
            whole = [dict(zip(curve["step"], curve[key], strict=True)) for curve in sound]
            steps = sorted(set.intersection(*map(set, whole))) if whole else []
            points = [statistics.describe(run[step] for run in whole) for step in steps]
            low = [point["mean"] - (point["se"] or 0.0) for point in points]
            high = [point["mean"] + (point["se"] or 0.0) for point in points]
            axes.fill_between(steps, low, high, color=LIGHT[i], alpha=0.22, linewidth=0)
            axes.plot(steps, [point["mean"] for point in points], color=LIGHT[i], dashes=dash(i))
            # The fall of the first tenth of training would flatten all that comes after it.
            shown += [
                value for k, step in enumerate(steps) if step >= steps[-1] / 10 for value in (low[k], high[k])
            ]
        drawn = [value for run in confirmed for value in run[split][key]]
        _scale(axes, shown or drawn, log=log and min(drawn, default=0.0) > 0)
        bottom, top = axes.get_ylim()
        for run in confirmed:
            if run["status"] == "diverged":
                step, values, color = run[split]["step"], run[split][key], LIGHT[look[run["optimizer"]]]
                axes.plot(step, values, color=color, linewidth=0.9)
                end = [min(max(value, bottom), top) for value in values[-1:]]
                axes.plot(step[-1:], end, "x", color=color, markersize=9, mew=2.2, clip_on=False, zorder=5)
        axes.set_xlabel("step")
        axes.set_ylabel(fitted(label, TALL))

    return svg(draw, prefix, look, label.capitalize() + " against step")


def _bars(summary: Summary, prefix: str, key: str, label: str, share: str | None = None) -> str:
    look, times = looks(summary["optimizers"]), summary["times"]["optimizers"]
    names = [name for name in verdict.rank(summary) if times[name][key]]
    limit = 1.5 * max((times[name][key]["median"] for name in names), default=1.0)

    def draw(axes: Axes) -> None:
        for row, name in enumerate(names):
            entry, color = times[name][key], LIGHT[look[name]]
            axes.barh(row, entry["median"], height=0.55, color=color, alpha=0.75)
            if share and times[name][share]:
                hatched: dict[str, Any] = {"fill": False, "hatch": "////", "edgecolor": INK}
                axes.barh(row, times[name][share]["median"], height=0.55, **hatched)
            end = _spread(axes, row, entry, limit)
            said = f"{entry['median']:.3g} (n = {entry['n']})"
            axes.annotate(said, (end, row), xytext=(6, 0), textcoords="offset points", va="center")
        short = labels(summary["optimizers"], 24)
        axes.set_yticks(range(len(names)), [short[name] for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        ends = [min(times[name][key]["high"], limit) for name in names]
        axes.set_xlim(0, 1.45 * max(ends, default=1.0))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)

    return svg(draw, prefix, {}, label.capitalize(), height=1.1 + 0.42 * len(names))


def _spread(axes: Axes, row: int, entry: Mapping[str, Any], limit: float) -> float:
    """Draw quartiles and ends; one run far off would flatten all bars, and ends in an arrow instead."""
    low, high = entry["low"], entry["high"]
    lower, upper = entry.get("lower", low), entry.get("upper", high)  # older summaries have no quartiles
    end = min(high, limit)
    axes.plot([low, end], [row, row], color=INK, linewidth=1.1, solid_capstyle="butt")
    axes.plot([lower, min(upper, end)], [row, row], color=INK, linewidth=4.5, solid_capstyle="butt")
    if high > limit:
        axes.plot(end, row, ">", color=INK, markersize=6)
    return float(end)


def _better(values: Sequence[float], sign: int) -> list[float]:
    """The values from the best to `REACH` times as far from it as the median is."""
    ranked = sorted(values, key=lambda value: -sign * value)
    reach = REACH * abs(ranked[len(ranked) // 2] - ranked[0]) if ranked else 0.0
    return [value for value in ranked if abs(value - ranked[0]) <= reach]


def _with_bars(means: set[float], points: Sequence[Mapping[str, Any]]) -> list[float]:
    """These means and the ends of their bars, which at most double the range: one seed may be far off."""
    bars = [(p["mean"], p["se"] or 0.0) for p in points if p["mean"] in means]
    reach = (max(means) - min(means)) / 2 if len(means) > 1 else math.inf
    low, high = (min(means) - reach, max(means) + reach) if means else (0.0, 0.0)
    return [*means, *(max(mean - se, low) for mean, se in bars), *(min(mean + se, high) for mean, se in bars)]


def _outside(axes: Axes, value: float) -> bool:
    low, high = axes.get_ylim()
    return not low <= value <= high


def _beyond(axes: Axes, point: Mapping[str, Any]) -> bool:
    return _outside(axes, point["mean"])


def _make_room(axes: Axes, sign: int, share: float) -> None:
    """Widen the y axis at its worst end, so that marks there hide no point."""
    ends = axes.transAxes.transform([(0, 0 if sign < 0 else -share), (0, 1 + share if sign < 0 else 1)])
    axes.set_ylim(*axes.transData.inverted().transform(ends)[:, 1])


def _lanes(axes: Axes, sign: int) -> Iterator[dict[str, Any]]:
    """Heights from the worst end of the y axis inwards, so that no mark there hides another's."""
    for i in count():
        inwards = ScaledTranslation(0, sign * (i + 0.6) * LANE / 72, axes.figure.dpi_scale_trans)
        yield {"transform": axes.get_xaxis_transform() + inwards, "clip_on": False, "zorder": 5}


def _scale(axes: Axes, values: Sequence[float], *, log: bool) -> None:
    """Limits that show all values; where `log` suits them, on a log axis beyond a factor of twenty."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if log and low > 0 and high / low > 20:
        axes.set_yscale("log")
        margin = (high / low) ** 0.08
        limits = (low / margin, high * margin)
        _log_ticks(axes.yaxis, limits)
    else:
        pad = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
        below = min(pad, low + pad / 3) if low >= 0 else pad  # little room for what cannot be negative
        limits = (low - below, high + pad)
    axes.set_ylim(*limits)


def _log_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Numbers on a log axis, at least two: one alone does not say how long a step is."""
    for subs in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10)), tuple(k / 10 for k in range(10, 100))):
        locator = LogLocator(subs=subs, numticks=12)
        inside = [tick for tick in locator.tick_values(*limits) if limits[0] <= tick <= limits[1]]
        if len(inside) > 1:
            break
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _labelled(summary: Summary) -> str:
    return f"{summary['metric']} ({summary['unit']})" if summary["unit"] else str(summary["metric"])
