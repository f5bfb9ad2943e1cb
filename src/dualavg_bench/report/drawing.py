"""The style of all figures, and their conversion from matplotlib to SVG in a page.

The SVG is the same to the last byte each time. Every id has the figure's own prefix, so that many figures can
share a page. Text stays text, 12 pixels high where a figure is as wide as its column. Ink, grid and the
colours of optimizers are CSS variables of the page, with a fallback, so that one SVG serves print, light and
dark. What belongs to an optimizer has a class, for the page to hide it, and its values are in `data-values`,
for the page to show them under the pointer.
"""

import contextlib
import io
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from dualavg_bench.analysis import formatting

# Okabe and Ito's colours, which colour-blind readers can distinguish (the yellow darkened, to show on white),
# each with a lighter version for a dark page.
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
FIXED = ("mda", "sgd", "adam", "adamw", "da+momentum", "da")  # the same colour in every study
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "h")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), "-.", (0, (8, 2, 2, 2, 2, 2)), (0, (1, 1)), (0, (4, 4)), "-")
# The same markers in a legend, around the middle of a box of 28 x 12.
KEYS = (
    "M10.5 6a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0",
    "M11 3h6v6h-6z",
    "M14 2l4 7h-8z",
    "M14 2l4 4l-4 4l-4 -4z",
    "M14 10l4 -7h-8z",
    "M13 2h2v3h3v2h-3v3h-2v-3h-3v-2h3z",
    "M14 2l4 3l-1.5 4.5h-5l-1.5 -4.5z",
    "M12 2.5h4l2 3.5l-2 3.5h-4l-2 -3.5z",
)
WIDTH = 360  # of a column of the page, in pixels; the narrowest of those that the page has on a screen
LINE_WIDTH = 1.8
LANE = 9  # points between the marks of two optimizers at the edge of the frame
FRAME_HEIGHT = 180  # in points, about
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12,
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
    "lines.linewidth": LINE_WIDTH,
    "axes.unicode_minus": True,
}


def looks(optimizers: Iterable[str]) -> dict[str, int]:
    """Return a number for each optimizer: the index of its colour, dash and marker in all figures."""
    names = sorted(optimizers)
    fixed = {name: FIXED.index(name) for name in names if name in FIXED}
    free = [i for i in range(len(LIGHT)) if i not in fixed.values()] or list(range(len(LIGHT)))
    others = [name for name in names if name not in fixed]
    return fixed | {name: free[i % len(free)] for i, name in enumerate(others)}


def dash(look: int) -> Any:
    """Return the dash of an optimizer, so that curves can be distinguished in print."""
    style = DASHES[look]
    if isinstance(style, tuple):
        return style[1]
    return (7, 2, 1.5, 2) if style == "-." else (None, None)


def labels(names: Iterable[str], longest: int = 40) -> dict[str, str]:
    """Return short names; the middle of a long one is left out, since names differ at either end."""
    short = formatting.short_names(names)
    for name, label in short.items():
        if len(label) > longest:
            short[name] = f"{label[: longest // 2]}\N{HORIZONTAL ELLIPSIS}{label[1 - longest // 2 :]}"
    return short


def wrapped(label: str, width: int, lines: int = 3) -> str:
    """Break a label into lines, so that the name of a metric stays within its figure.

    Examples:
        >>> wrapped("validation accuracy (%)", 40)
        'validation accuracy (%)'
        >>> wrapped("one two three four", 9, lines=1)
        'one two \N{HORIZONTAL ELLIPSIS}'
    """
    ellipsis = " \N{HORIZONTAL ELLIPSIS}"
    return "\n".join(textwrap.wrap(label, width, max_lines=lines, placeholder=ellipsis)) or label[:width]


@dataclass(frozen=True)
class Value:
    """A point of a figure in words: "step 600", "2.85 ± 0.01"."""

    x: float
    y: float
    at: str
    text: str


@dataclass(frozen=True)
class Series:
    """The values of an optimizer in a figure."""

    look: int
    name: str
    values: list[Value]


def key(look: int) -> Markup:
    """Return the line and the marker of an optimizer, for a legend."""
    lengths = [length for length in dash(look) if length is not None]
    dashes = f' stroke-dasharray="{" ".join(f"{LINE_WIDTH * length:g}" for length in lengths)}"' * bool(
        lengths
    )
    return Markup(  # noqa: S704, made of constants
        '<svg class="line" viewBox="0 0 28 12" aria-hidden="true">'
        f'<path d="M0 6h28" fill="none" stroke="var(--c{look})" stroke-width="{LINE_WIDTH}"{dashes}/>'
        f'<path d="{KEYS[look]}" fill="var(--c{look})"/></svg>'
    )


@contextlib.contextmanager
def belonging(axes: Axes, look: int) -> Iterator[None]:
    """Mark all that is drawn in the block as an optimizer's, for the page to hide it."""
    before = set(axes.get_children())
    yield
    for artist in axes.get_children():
        if artist not in before:
            artist.set_gid(f"o{look}")


def svg(
    draw: Callable[[Axes], Sequence[Series] | None],
    prefix: str,
    title: str,
    height: float = 230,
) -> str:
    """Draw a figure and return it as an SVG element.

    Args:
        draw: draws into the axes, and returns the values that the page shows under the pointer, if any.
        prefix: of every id, unique in a page.
        title: for readers who cannot see the figure.
        height: in pixels, where the figure is as wide as its column.
    """
    with mpl.rc_context({**STYLE, "svg.hashsalt": prefix}):
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        series = draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        values = _values(axes, series or ())
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn, flags=re.DOTALL)
    drawn = re.sub(
        r"<style.*?</style>", "", drawn, count=1, flags=re.DOTALL
    )  # it would apply to the whole page
    number = count()
    drawn = re.sub(r'\bid="(o\d+)"', lambda own: f'class="{own[1]}" id="{own[1]}-{next(number)}"', drawn)
    drawn = re.sub(r'\bid="', f'id="{prefix}-', drawn)
    drawn = re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", drawn)
    drawn = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", drawn)
    drawn = re.sub(r"#[0-9a-f]{6}\b", lambda match: _variable(match[0]), drawn)
    label = f'role="img" aria-label="{escape(title)}" style="stroke-linejoin:round"'
    if values:
        label += f' data-values="{escape(json.dumps(values, separators=(",", ":"), ensure_ascii=False))}"'
    return re.sub(
        r'^<svg ([^>]*?)width="[^"]*" height="[^"]*"',
        lambda match: f"<svg {label} {match[1]}",
        drawn,
        count=1,
    )


def _values(axes: Axes, series: Sequence[Series]) -> list[list[Any]]:
    """Return look, name and [x, y, at, text] of the values within the frame, x and y in pixels of the SVG."""
    frame, height = axes.get_window_extent(), axes.figure.bbox.height
    found = []
    for each in series:
        points = []
        for value in each.values:
            x, y = axes.transData.transform((value.x, value.y))
            if frame.x0 - 1 <= x <= frame.x1 + 1 and frame.y0 - 1 <= y <= frame.y1 + 1:
                points.append([round(float(x), 1), round(float(height - y), 1), value.at, value.text])
        found.append([each.look, each.name, points])
    return found


def spans_decades(values: Sequence[float]) -> bool:
    """Return whether values are positive, and more than a factor of twenty apart: they need a log axis."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > 20


def set_scale(axes: Axes, values: Sequence[float], *, log: bool) -> None:
    """Set a linear or log y axis, and limits that show all values; a log axis needs positive ones."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if log:
        axes.set_yscale("log")
        margin = max((high / low) ** 0.08, 1.01)
        limits = (low / margin, high * margin)
        log_ticks(axes.yaxis, limits)
    else:
        pad = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
        below = min(pad, low + pad / 3) if low >= 0 else pad  # little room below zero for a positive score
        limits = (low - below, high + pad)
    axes.set_ylim(*limits)


def log_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Put at least two numbers on a log axis: one alone does not show the scale."""
    for subs in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10)), tuple(k / 10 for k in range(10, 100))):
        locator = LogLocator(subs=subs, numticks=12)
        inside = [tick for tick in locator.tick_values(*limits) if limits[0] <= tick <= limits[1]]
        if len(inside) > 1:
            break
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def is_outside(axes: Axes, value: float) -> bool:
    """Return whether a value is outside the limits of the y axis."""
    low, high = axes.get_ylim()
    return not low <= value <= high


def edge_marks(sign: int) -> tuple[int, str]:
    """Return the worst end of the y axis, and the caret that points beyond it."""
    return (0, "v") if sign > 0 else (1, "^")


def make_room(axes: Axes, sign: int, lanes: int) -> None:
    """Extend the y axis at its worst end, so that the marks there hide no point."""
    share = (lanes + 0.5) * LANE / FRAME_HEIGHT if lanes else 0.0
    ends = axes.transAxes.transform([(0, 0 if sign < 0 else -share), (0, 1 + share if sign < 0 else 1)])
    axes.set_ylim(*axes.transData.inverted().transform(ends)[:, 1])


def lanes(axes: Axes, sign: int) -> Iterator[dict[str, Any]]:
    """Yield heights from the worst end of the y axis inwards, so that no mark hides another."""
    for i in count():
        inwards = ScaledTranslation(0, sign * (i + 0.6) * LANE / 72, axes.figure.dpi_scale_trans)
        yield {"transform": axes.get_xaxis_transform() + inwards, "clip_on": False, "zorder": 5}


def _variable(color: str) -> str:
    if color in (INK, GRID):
        return f"var(--{'ink' if color == INK else 'grid'}, {color})"
    return f"var(--c{LIGHT.index(color)}, {color})" if color in PALETTE else color
