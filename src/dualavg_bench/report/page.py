"""Templates filled with text.

All text is escaped by jinja2. Only the figures are inserted as they are: matplotlib has escaped their text.
The page's content policy forbids scripts, too.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dualavg_bench.report import drawing, figures


def fill_template(template: str, **values: Any) -> str:
    """Fill a template; all text in it is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    palette = list(enumerate(drawing.PALETTE.items()))
    return environment.get_template(template).render(palette=palette, reach=figures.REACH, **values) + "\n"
