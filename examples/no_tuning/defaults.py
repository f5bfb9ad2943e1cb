"""No tuning at all: optimizers at the step size that is their default, on the paper's miniatures.

Four optimizers find their own step size: DAdaptMDA, DAdaptSGD, DAdaptAdam and Prodigy. Two have a default
that many people use as it is: AdamW of torch and of schedulefree. MDA at its default of 1 tells whether the
search for a step size was worth it. The recipes beside this file run them, one task each. The paper's
ablation is not among them, because its task is that of cifar10:

    dualavg study examples/no_tuning/cifar10.py --scale mini --data DIR --out OUT/no_tuning --no-extend

Every setting is the optimizer's own default, weight decay included, with two exceptions. DAdaptSGD has
momentum 0.9: its default is none, which nobody uses. And schedulefree gets no schedule, which is its point;
the others get the schedule that the paper uses for the task. The recipes keep their names, so initialisation
and data order are those of the published studies, seed by seed.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dualavg_bench.recipe import Grid, Recipe, Seeds, registry

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {  # with the settings that are not defaults
    "dadapt-mda": {},
    "mda": {},
    "dadaptation.DAdaptSGD": {"momentum": 0.9},
    "dadaptation.DAdaptAdam": {},
    "prodigyopt.Prodigy": {},
    "schedulefree.AdamWScheduleFree": {},
    "adamw": {},
}
WITHOUT_SCHEDULE = "schedulefree.AdamWScheduleFree"


def untuned(base: Recipe, schedule: str) -> Recipe:
    """Return the recipe with one point for each optimizer: its defaults, and the schedule of the task."""
    grids = {}
    for name, settings in OPTIMIZERS.items():
        lr = inspect.signature(registry.find(name)[0]).parameters["lr"].default
        shape = "constant" if name == WITHOUT_SCHEDULE else schedule
        grids[name] = Grid(lr=lr, schedule=shape, settings=settings)
    return replace(base, grids=grids, seeds=Seeds(tune=1, confirm=4))
