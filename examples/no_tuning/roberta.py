"""The roberta experiment without tuning: see defaults.py."""

import defaults

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import roberta


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    return defaults.untuned(roberta.recipe(scale), schedule="polynomial")
