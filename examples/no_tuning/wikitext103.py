"""The wikitext103 experiment without tuning: see defaults.py."""

import defaults

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import wikitext103


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    return defaults.untuned(wikitext103.recipe(scale), schedule="linear")
