"""The cifar10 experiment with a fading pull and without one, on MDA's grid and seeds: see pull.py.

    dualavg study examples/pull_cifar10.py --scale mini --data DIR

The recipe keeps its name, so initialisation and data order are those of `dualavg study cifar10`, seed by
seed. Give it another --out than that study.
"""

from dataclasses import replace

import pull

from dualavg_bench.recipe import Recipe, Scale
from dualavg_bench.recipes import cifar10


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    base = cifar10.recipe(scale)
    names = [f"{pull.__name__}.{variant.__name__}" for variant in (pull.FadingPull, pull.NoPull)]
    return replace(base, grids=dict.fromkeys(names, base.grids["mda"]))
