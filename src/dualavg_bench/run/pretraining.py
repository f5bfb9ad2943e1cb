"""Runs that start from a trained network instead of a random one.

The network comes from another run, that of the recipe's `start`. It is trained once: the first run that
needs it trains it, the others wait for its lock and read the weights. If the process is killed, the next one
resumes from the checkpoint. Its folder is named by the hash of its spec, which is also part of the spec of
every run that starts from it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dualavg_bench.recipe import Recipe, RecipeError
from dualavg_bench.run import training
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult


def run(spec: RunSpec, recipe: Recipe, folder: RunFolder, data: Path, **options: Any) -> RunResult:
    """Return the result of a run as `training.run` does; first train the network it starts from, if any."""
    if recipe.start is None or spec.start is None or folder.result() is not None:
        return training.run(spec, recipe, folder, data, **options)
    start = folder.beside(recipe.start.name, spec.start.hash)
    stops = {name: options[name] for name in ("checkpoint_seconds", "should_stop") if name in options}
    result = training.run(spec.start, recipe.start, start, data, keep_network=True, **stops)
    if result.diverged:
        raise RecipeError(f"The start of recipe {recipe.name} diverged ({result.why}): no run can start.")
    started = replace(recipe, model=partial(_load, recipe.model, start))
    return training.run(spec, started, folder, data, **options)


def _load(model: Callable[[], torch.nn.Module], start: RunFolder) -> torch.nn.Module:
    network = model()
    network.load_state_dict(start.load_network())
    return network
