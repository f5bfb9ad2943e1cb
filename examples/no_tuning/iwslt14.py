"""The iwslt14 experiment without tuning: see defaults.py."""

import defaults

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import iwslt14


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    return defaults.untuned(iwslt14.recipe(scale), schedule="fixed" if scale == "mini" else "inverse_sqrt")
