"""The figures of the report: pure functions of a summary (and runs) to SVG text.

An SVG made here is the same to the last byte each time, and has its own prefix on every id, so that many can
stand in one page. Its text is text; ink, grid and the colours of optimizers are CSS variables of the page,
with a fallback for the file on its own, so that one SVG serves paper, light and dark.
"""

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from dualavg_bench import findings, stats, text

Summary = Mapping[str, Any]

# Okabe and Ito's colours, which colour-blind readers tell apart (their yellow darkened, to be seen on white),
# each with a lighter sister for a dark page.
PALETTE = {
    "#0072b2": "#4ba3e3",
    "#d55e00": "#ff8b45",
    "#009e73": "#2fc698",
    "#cc79a7": "#e79ac4",
    "#e69f00": "#f5bc4a",
    "#56b4e9": "#a5dcfa",
    "#8a7a00": "#e3d95f",
    "#6e6e6e": "#a8a8a8",
}
LIGHT = list(PALETTE)
INK, GRID = ("#1b1f24", "#c9ced6")
FIRST = ("mda", "sgd", "adam", "adamw", "da+momentum", "da")  # these keep their colour in every study
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "h")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), "-.", (0, (8, 2, 2, 2, 2, 2)), (0, (1, 1)), (0, (4, 4)), "-")
REACH = 5  # so that the better half of the points has at least a fifth of the sensitivity plot
LANE = 9  # points between the crosses of two optimizers
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "axes.unicode_minus": True,
}


def looks(optimizers: Iterable[str]) -> dict[str, int]:
    """A number for each optimizer, which fixes its colour, dash and marker in every figure of a study."""
    names = sorted(optimizers)
    known = {name: FIRST.index(name) for name in names if name in FIRST}
    free = [i for i in range(len(LIGHT)) if i not in known.values()] or list(range(len(LIGHT)))
    others = [name for name in names if name not in known]
    return known | {name: free[i % len(free)] for i, name in enumerate(others)}


def training_curves(summary: Summary, runs: Sequence[stats.Run], prefix: str = "train") -> str:
    """Training loss of the chosen settings: mean and s.e. over seeds; each diverged run ends in a cross."""
    return _curves(
        summary, runs, prefix, lambda run: (run["train"]["step"], run["train"]["loss"]), "training loss"
    )


def validation_curves(summary: Summary, runs: Sequence[stats.Run], prefix: str = "valid") -> str:
    """The same of the declared metric on validation."""
    metric = summary["metric"]
    label = f"validation {_labelled(summary)}"
    return _curves(summary, runs, prefix, lambda run: (run["valid"]["step"], run["valid"][metric]), label)


def sensitivity(summary: Summary, prefix: str = "sensitivity") -> str:
    """Validation score against step size: the best of each step size joined, diverged points crossed.

    A point far worse than the better ones would flatten them all: it is a hollow caret at the axis, as are
    the crosses, each optimizer's at a height of its own.
    """
    look, sign = _ranked_looks(summary), 1 if summary["higher_is_better"] else -1
    grids = {name: [p for p in summary["sensitivity"][name] if p["lr"] > 0] for name in look}
    chosen = {name: summary["optimizers"][name]["chosen"] for name in look}

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        lrs = [p["lr"] for points in grids.values() for p in points] or [1.0]
        pad = max(max(lrs) / min(lrs), 2.0) ** 0.06
        axes.set_xlim(min(lrs) / pad, max(lrs) * pad)  # marks at the axis do not widen it
        sound = [p["mean"] for points in grids.values() for p in points if not p["diverged"]]
        winners = [c["valid"]["mean"] for c in chosen.values() if not c["valid"]["diverged"]]
        _scale(axes, _better(sound, sign) + winners)
        bottom, top = axes.get_ylim()
        lanes, (edge, away) = _lanes(axes, sign), (0, "v") if sign > 0 else (1, "^")
        for name, points in grids.items():
            color, marker = LIGHT[look[name]], MARKERS[look[name]]
            best: dict[float, Mapping[str, Any]] = {}
            for point in sorted(points, key=lambda p: (p["diverged"] > 0, -sign * p["mean"])):
                best.setdefault(point["lr"], point)
            line = [best[lr] for lr in sorted(best) if not best[lr]["diverged"]]
            rest = [p for p in points if not p["diverged"] and best[p["lr"]] is not p]
            x, y = [p["lr"] for p in line], [p["mean"] for p in line]
            axes.plot(x, y, color=color, dashes=_dash(look[name]))
            axes.errorbar(
                x, y, [p["se"] or 0.0 for p in line], fmt=marker, color=color, markersize=6, linewidth=1.2
            )
            pale: dict[str, Any] = {"color": color, "alpha": 0.4, "markersize": 4}
            axes.plot([p["lr"] for p in rest], [p["mean"] for p in rest], marker, **pale)
            lost = sorted({p["lr"] for p in points if p["diverged"]})
            far = sorted({p["lr"] for p in line + rest if not bottom <= p["mean"] <= top})
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
        axes.set_ylabel(f"validation {_labelled(summary)}")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())

    return _svg(draw, prefix, look, f"Validation {summary['metric']} against step size", marked=True)


def budget(summary: Summary, prefix: str = "budget") -> str:
    """Expected best validation score against the number of grid points tried."""
    look = _ranked_looks(summary)

    def draw(axes: Axes) -> None:
        for name, scores in summary["budget"].items():
            m = range(1, len(scores) + 1)
            style = {"color": LIGHT[look[name]], "marker": MARKERS[look[name]], "dashes": _dash(look[name])}
            axes.plot(m, scores, markersize=4.5, **style)
        _scale(axes, [value for scores in summary["budget"].values() for value in scores])
        axes.set_xlabel("grid points tried")
        axes.set_ylabel(f"expected {_labelled(summary)}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

    return _svg(draw, prefix, look, "Expected best validation score against tuning budget", marked=True)


def differences(summary: Summary, prefix: str = "differences") -> str:
    """Paired test differences with 95% intervals, the better optimizer first."""
    pairs = summary["comparisons"]

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=INK, linewidth=1.0)
        for row, pair in enumerate(pairs):
            firm = findings.distinguishable(pair)
            if pair["low"] is not None:
                axes.plot([pair["low"], pair["high"]], [row, row], color=INK, linewidth=2.2 if firm else 1.2)
            axes.plot(pair["difference"], row, "o", mfc=INK if firm else "none", mec=INK, markersize=7)
        short = _labels(summary["optimizers"], 24)
        names = [(short[pair["a"]], short[pair["b"]]) for pair in pairs]
        breaks = ["\n" if len(a + b) > 22 else " " for a, b in names]
        labels = [f"{a} \N{MINUS SIGN}{gap}{b}" for (a, b), gap in zip(names, breaks, strict=True)]
        axes.set_yticks(range(len(pairs)), labels)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=5)  # long names leave little room for numbers
        axes.tick_params(axis="y", length=0)
        unit = " (points)" if summary["unit"] == "%" else f" ({summary['unit']})" if summary["unit"] else ""
        axes.set_xlabel(f"difference in test {summary['metric']}{unit}")

    return _svg(draw, prefix, {}, "Paired differences in test score", height=1.1 + 0.42 * len(pairs))


def step_time(summary: Summary, prefix: str = "time") -> str:
    """Median time of a step, the optimizer's own share of it hatched."""
    return _bars(summary, prefix, "step_ms", "time per step (ms)", share="optimizer_ms")


def memory(summary: Summary, prefix: str = "memory") -> str:
    """Median peak memory."""
    return _bars(summary, prefix, "peak_mb", "peak memory (MB)")


def _ranked_looks(summary: Summary) -> dict[str, int]:
    look = looks(summary["optimizers"])
    return {name: look[name] for name in findings.rank(summary)}


def _curves(
    summary: Summary,
    runs: Sequence[stats.Run],
    prefix: str,
    series: Callable[[stats.Run], tuple[Sequence[int], Sequence[float]]],
    label: str,
) -> str:
    look = _ranked_looks(summary)
    confirmed = sorted(
        (r for r in runs if r["phase"] == "confirm"), key=lambda r: (r["optimizer"], r["seed"])
    )

    def draw(axes: Axes) -> None:
        shown: list[float] = []
        for name, i in look.items():
            mine = [run for run in confirmed if run["optimizer"] == name]
            whole = [dict(zip(*series(run), strict=True)) for run in mine if run["status"] != "diverged"]
            steps = sorted(set.intersection(*map(set, whole))) if whole else []
            points = [stats.describe(run[step] for run in whole) for step in steps]
            low = [point["mean"] - (point["se"] or 0.0) for point in points]
            high = [point["mean"] + (point["se"] or 0.0) for point in points]
            axes.fill_between(steps, low, high, color=LIGHT[i], alpha=0.22, linewidth=0)
            axes.plot(steps, [point["mean"] for point in points], color=LIGHT[i], dashes=_dash(i))
            # The fall of the first tenth of training would flatten all that comes after it.
            shown += [
                value for k, step in enumerate(steps) if step >= steps[-1] / 10 for value in (low[k], high[k])
            ]
        _scale(axes, shown or [value for run in confirmed for value in series(run)[1]])
        bottom, top = axes.get_ylim()
        for run in confirmed:
            if run["status"] == "diverged":
                (step, values), color = series(run), LIGHT[look[run["optimizer"]]]
                axes.plot(step, values, color=color, linewidth=0.9)
                end = [min(max(value, bottom), top) for value in values[-1:]]
                axes.plot(step[-1:], end, "x", color=color, markersize=9, mew=2.2, clip_on=False, zorder=5)
        axes.set_xlabel("step")
        axes.set_ylabel(label)

    return _svg(draw, prefix, look, label.capitalize() + " against step")


def _bars(summary: Summary, prefix: str, key: str, label: str, share: str | None = None) -> str:
    look, times = looks(summary["optimizers"]), summary["times"]["optimizers"]
    names = [name for name in findings.rank(summary) if times[name][key]]

    def draw(axes: Axes) -> None:
        for row, name in enumerate(names):
            entry, color = times[name][key], LIGHT[look[name]]
            axes.barh(row, entry["median"], height=0.55, color=color, alpha=0.75)
            if share and times[name][share]:
                axes.barh(
                    row, times[name][share]["median"], height=0.55, fill=False, hatch="////", edgecolor=INK
                )
            axes.annotate(
                f"{entry['median']:.3g} (n = {entry['n']})",
                (entry["median"], row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
            )
        short = _labels(summary["optimizers"], 24)
        axes.set_yticks(range(len(names)), [short[name] for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, 1.45 * max((times[name][key]["median"] for name in names), default=1.0))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)

    return _svg(draw, prefix, {}, label.capitalize(), height=1.1 + 0.42 * len(names))


def _better(values: Sequence[float], sign: int) -> list[float]:
    """The values from the best to `REACH` times as far from it as the median is."""
    ranked = sorted(values, key=lambda value: -sign * value)
    reach = REACH * abs(ranked[len(ranked) // 2] - ranked[0]) if ranked else 0.0
    return [value for value in ranked if abs(value - ranked[0]) <= reach]


def _lanes(axes: Axes, sign: int) -> Iterator[dict[str, Any]]:
    """Heights from the worst end of the y axis inwards, so that no mark there hides another's."""
    for i in count():
        inwards = ScaledTranslation(0, sign * i * LANE / 72, axes.figure.dpi_scale_trans)
        yield {"transform": axes.get_xaxis_transform() + inwards, "clip_on": False, "zorder": 5}


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Limits that show all values, on a log axis beyond a factor of twenty."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if low > 0 and high / low > 20:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        margin = (high / low) ** 0.08
        limits = (low / margin, high * margin)
    else:
        pad = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
        limits = (low - pad, high + pad)
    axes.set_ylim(*limits)


def _dash(look: int) -> Any:
    """The dash of an optimizer, so that curves are told apart on grey paper."""
    style = DASHES[look]
    if isinstance(style, tuple):
        return style[1]
    return (7, 2, 1.5, 2) if style == "-." else (None, None)


def _labelled(summary: Summary) -> str:
    return f"{summary['metric']} ({summary['unit']})" if summary["unit"] else str(summary["metric"])


def _labels(names: Iterable[str], most: int = 40) -> dict[str, str]:
    """Short names that fit; of one that does not, the middle is left out, for names differ at either end."""
    short = text.short_names(names)
    for name, label in short.items():
        if len(label) > most:
            short[name] = f"{label[: most // 2]}\N{HORIZONTAL ELLIPSIS}{label[1 - most // 2 :]}"
    return short


def _svg(
    draw: Callable[[Axes], None],
    prefix: str,
    look: Mapping[str, int],
    title: str,
    height: float = 3.5,
    *,
    marked: bool = False,
) -> str:
    """Draw, and turn matplotlib's file into an element that stands in a page beside others."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": prefix}):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if look:
            handles = [
                mpl.lines.Line2D([], [], color=LIGHT[i], dashes=_dash(i), marker=MARKERS[i] if marked else "")
                for i in look.values()
            ]
            labels = list(_labels(look).values())
            columns = {0: 3, 1: 2}.get(max(map(len, labels)) // 14, 1)
            figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=2.6)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"<style.*?</style>", "", drawn, count=1, flags=re.DOTALL)  # it would style the whole page
    drawn = re.sub(r'\bid="', f'id="{prefix}-', drawn)
    drawn = re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", drawn)
    drawn = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", drawn)
    drawn = re.sub(r"#[0-9a-f]{6}\b", lambda match: _variable(match[0]), drawn)
    label = f'role="img" aria-label="{escape(title)}" style="stroke-linejoin:round"'
    return re.sub(
        r'^<svg ([^>]*?)width="[^"]*" height="[^"]*"',
        lambda match: f"<svg {label} {match[1]}",
        drawn,
        count=1,
    )


def _variable(color: str) -> str:
    if color in (INK, GRID):
        return f"var(--{'ink' if color == INK else 'grid'}, {color})"
    return f"var(--c{LIGHT.index(color)}, {color})" if color in PALETTE else color
