"""Templates filled with text.

All text is escaped by jinja2. Only the figures are inserted as they are: matplotlib has escaped their text.
The page has one script, its own. The content policy names it by its digest and forbids any other.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dualavg_bench.report import drawing, figures

TEMPLATES = Path(__file__).parent / "templates"
Drawn = list[figures.Plot]  # a figure, with its default axis first


def drawn(figure: str | Sequence[figures.Plot]) -> Drawn:
    """Return a figure for a page, whose SVG is inserted as it is."""
    plots = [figures.Plot("linear", figure)] if isinstance(figure, str) else figure
    return [figures.Plot(plot.scale, Markup(plot.svg)) for plot in plots]  # noqa: S704, matplotlib escaped it


def all_drawn(found: Mapping[str, str | Sequence[figures.Plot]]) -> dict[str, Drawn]:
    """Return figures for a page, by name."""
    return {name: drawn(figure) for name, figure in found.items()}


def fill_template(template: str, **values: Any) -> str:
    """Fill a template; all text in it is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["key"] = drawing.key
    script = (TEMPLATES / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {
        "palette": list(enumerate(drawing.PALETTE.items())),
        "reach": figures.REACH,
        "script": Markup(script),  # noqa: S704, our own
        "script_digest": digest,
    }
    return environment.get_template(template).render(**shared, **values) + "\n"
