"""The cifar10_ablation experiment without tuning: see defaults.py."""

import defaults

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import cifar10_ablation


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    return defaults.untuned(cifar10_ablation.recipe(scale), schedule="stagewise")
