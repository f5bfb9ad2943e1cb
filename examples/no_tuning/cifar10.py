"""The cifar10 experiment without tuning: see defaults.py."""

import defaults

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import cifar10


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    return defaults.untuned(cifar10.recipe(scale), schedule="stagewise")
