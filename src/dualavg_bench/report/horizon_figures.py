"""The figures of a horizon: score, training loss and gap against run length; pure functions to SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dualavg_bench.analysis.formatting import decimals, plain, signed
from dualavg_bench.analysis.horizon import places
from dualavg_bench.analysis.standings import optimizers, standings
from dualavg_bench.report.drawing import (
    INK,
    LIGHT,
    MARKERS,
    Series,
    Value,
    belonging,
    dash,
    is_outside,
    looks,
    set_scale,
    spans_decades,
    svg,
    wrapped,
)
from dualavg_bench.report.figures import LABEL_HEIGHT, REACH
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.summaries import Statistics

FEWEST = 0.1  # of the width of the x axis, between two lengths that are both written below it


@dataclass(frozen=True)
class Mark:
    """A value at a run length, with the ends of its bar."""

    steps: int
    value: float
    low: float
    high: float


def scores(horizon: Horizon, prefix: str = "scores") -> str:
    """Test score against run length, with standard errors."""
    unit = f" ({horizon.unit})" if horizon.unit else ""
    marks = {
        name: [
            _with_error(length.steps, length.confirmed[name])
            for length in horizon.lengths
            if name in length.confirmed
        ]
        for name in optimizers(horizon)
    }
    label = f"test {horizon.metric}{unit}"
    return _figure(horizon, prefix, marks, label, places(horizon), log=not horizon.higher_is_better)


def training_loss(horizon: Horizon, prefix: str = "loss") -> str:
    """Training loss at the end of the runs, with standard errors."""
    marks: dict[str, list[Mark]] = {name: [] for name in optimizers(horizon)}
    for length in horizon.lengths:
        for name, entry in length.optimizers.items():
            if entry.train is not None:
                marks[name].append(_with_error(length.steps, entry.train))
    digits = decimals(mark.high - mark.value for own in marks.values() for mark in own)
    return _figure(horizon, prefix, marks, "training loss at the end", digits, log=True)


def gaps(horizon: Horizon, prefix: str = "gaps") -> str:
    """Advantage over the best other optimizer, paired by seed, with 95% intervals.

    A gap far wider than most, as short runs have it, would flatten the others: it becomes a hollow caret at
    the edge of the frame.
    """
    marks: dict[str, list[Mark]] = {name: [] for name in optimizers(horizon)}
    for one in standings(horizon):
        low = one.advantage if one.low is None else one.low
        high = one.advantage if one.high is None else one.high
        marks[one.optimizer].append(Mark(one.steps, one.advantage, low, high))
    unit = " (points)" if horizon.unit == "%" else f" ({horizon.unit})" if horizon.unit else ""
    return _figure(
        horizon, prefix, marks, f"advantage over the best other{unit}", places(horizon), log=False, gap=True
    )


def _with_error(steps: int, described: Statistics) -> Mark:
    se = described.se or 0.0
    return Mark(steps, described.mean, described.mean - se, described.mean + se)


def _figure(
    horizon: Horizon,
    prefix: str,
    marks: Mapping[str, Sequence[Mark]],
    label: str,
    digits: int,
    *,
    log: bool,
    gap: bool = False,
) -> str:
    look = {name: looks(marks)[name] for name in marks if marks[name]}
    lengths = [length.steps for length in horizon.lengths]
    ratio = min((b / a for a, b in pairwise(lengths)), default=2.0)
    middle = (len(look) - 1) / 2
    # Side by side, or one bar would hide another.
    shift = {name: min(ratio, 2.0) ** (0.1 * (i - middle)) for i, name in enumerate(look)}

    def draw(axes: Axes) -> list[Series]:
        _length_axis(axes, lengths)
        ends = [end for own in marks.values() for mark in own for end in (mark.low, mark.high)]
        if gap:
            most = REACH * median(map(abs, ends)) if ends else 1.0
            set_scale(axes, [0.0, *(min(max(end, -most), most) for end in ends)], log=False)
            axes.axhline(0, color=INK, linewidth=1.0)
        else:
            set_scale(axes, ends, log=log and spans_decades(ends))
        for name, i in look.items():
            color, own = LIGHT[i], marks[name]
            with belonging(axes, i):
                x = [mark.steps * shift[name] for mark in own]
                y = [mark.value for mark in own]
                bars = [[mark.value - mark.low for mark in own], [mark.high - mark.value for mark in own]]
                axes.plot(x, y, color=color, dashes=dash(i))
                axes.errorbar(x, y, bars, fmt=MARKERS[i], color=color, markersize=6, linewidth=1.2)
                _mark_outside(axes, x, y, color)
        axes.set_xlabel("run length (steps)")
        axes.set_ylabel(wrapped(label, LABEL_HEIGHT))

        return [
            Series(
                look[name],
                name,
                [
                    Value(
                        m.steps * shift[name], m.value, f"{m.steps:,} steps", _mark_text(m, digits, gap=gap)
                    )
                    for m in marks[name]
                ],
            )
            for name in look
        ]

    return svg(draw, prefix, f"{label.capitalize()} against run length")


def _mark_text(mark: Mark, digits: int, *, gap: bool) -> str:
    """Return a value with its standard error, or an advantage with its interval."""
    if gap:
        return f"{signed(mark.value, digits)} ({signed(mark.low, digits)} to {signed(mark.high, digits)})"
    return f"{plain(mark.value, digits)} ± {plain(mark.high - mark.value, digits)}"


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """Set a log axis with the lengths below it, as many as there is room for."""
    axes.set_xscale("log")
    margin = max(lengths[-1] / lengths[0], 2.0) ** 0.08
    axes.set_xlim(lengths[0] / margin, lengths[-1] * margin)
    apart = (lengths[-1] / lengths[0]) ** FEWEST
    ticks = [lengths[-1]]
    for steps in reversed(lengths[:-1]):
        if ticks[-1] / steps >= apart:
            ticks.append(steps)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _mark_outside(axes: Axes, x: Sequence[float], y: Sequence[float], color: str) -> None:
    hollow: dict[str, Any] = {"mfc": "none", "color": color, "markersize": 8, "clip_on": False, "zorder": 5}
    low, high = axes.get_ylim()
    for place, value in zip(x, y, strict=True):
        if is_outside(axes, value):
            axes.plot([place], [low if value < low else high], "v" if value < low else "^", **hollow)
