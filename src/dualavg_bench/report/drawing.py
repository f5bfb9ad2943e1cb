"""How figures look, and how matplotlib's become elements of a page.

An SVG made here is the same to the last byte each time, and has its own prefix on every id, so that many can
stand in one page. Its text is text; ink, grid and the colours of optimizers are CSS variables of the page,
with a fallback for the file on its own, so that one SVG serves paper, light and dark.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualavg_bench.analysis import formatting

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


def dash(look: int) -> Any:
    """The dash of an optimizer, so that curves are told apart on grey paper."""
    style = DASHES[look]
    if isinstance(style, tuple):
        return style[1]
    return (7, 2, 1.5, 2) if style == "-." else (None, None)


def labels(names: Iterable[str], most: int = 40) -> dict[str, str]:
    """Short names that fit; of one that does not, the middle is left out, for names differ at either end."""
    short = formatting.short_names(names)
    for name, label in short.items():
        if len(label) > most:
            short[name] = f"{label[: most // 2]}\N{HORIZONTAL ELLIPSIS}{label[1 - most // 2 :]}"
    return short


def fitted(label: str, width: int, most: int = 3) -> str:
    """A label in lines of at most so many letters, so that a long metric's name stays within its figure.

    Examples:
        >>> fitted("validation accuracy (%)", 40)
        'validation accuracy (%)'
        >>> fitted("one two three four", 9, most=1)
        'one two \N{HORIZONTAL ELLIPSIS}'
    """
    ellipsis = " \N{HORIZONTAL ELLIPSIS}"
    return "\n".join(textwrap.wrap(label, width, max_lines=most, placeholder=ellipsis)) or label[:width]


def svg(
    draw: Callable[[Axes], None],
    prefix: str,
    look: Mapping[str, int],
    title: str,
    height: float = 3.5,
    *,
    marked: bool = False,
) -> str:
    """Draw, and turn matplotlib's file into an element that stands in a page beside others."""
    names = list(labels(look).values())
    columns = {0: 3, 1: 2}.get(max(map(len, names), default=0) // 14, 1)
    rows = -(-len(names) // columns)  # of the legend, which must not take its room from the frame
    with mpl.rc_context({**STYLE, "svg.hashsalt": prefix}):
        figure = Figure(figsize=(5.2, height + 0.2 * max(0, rows - 1)), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if look:
            handles = [
                mpl.lines.Line2D([], [], color=LIGHT[i], dashes=dash(i), marker=MARKERS[i] if marked else "")
                for i in look.values()
            ]
            figure.legend(handles, names, loc="outside upper left", ncols=columns, handlelength=2.6)
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
