"""The fastmri experiment without tuning: see defaults.py."""

import defaults

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import fastmri


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    return defaults.untuned(fastmri.recipe(scale), schedule="flat_drop")
