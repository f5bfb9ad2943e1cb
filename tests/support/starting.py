"""A recipe whose runs start from a trained network, and a process that executes one of them.

    python -m support.starting FOLDER

Every step of the pretraining writes a line to FOLDER/log. While FOLDER/slow exists, each takes 20 ms more.
"""

import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from dualavg_bench.recipe import Grid, Metric, Recipe, Splits
from dualavg_bench.run import pretraining
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder
from support.lines import Lines, evaluate, loss, make_recipe, make_spec

STEPS = 80  # of the pretraining


def logged_loss(model, batch, *, folder):
    if model.training:
        with (folder / "log").open("a") as log:
            log.write(f"{os.getpid()}\n")
        if (folder / "slow").exists():
            time.sleep(0.02)
    return loss(model, batch)


def both_scores(model, batches):
    error = evaluate(model, batches)["error"]
    return {"loss": error, "error": error, "other": 10 - error}


def make(folder: Path, **changes) -> Recipe:
    splits = Splits(Lines(100, 10), Lines(40, 11), Lines(40, 12))
    start = make_recipe(
        splits,
        name="lines-start",
        loss=partial(logged_loss, folder=folder),
        steps=STEPS,
        grids={"adamw": Grid((0.01,), (0.01,), ("linear",))},
    )
    also = Metric("other", higher_is_better=True)
    return make_recipe(**{"start": start, "steps": 20, "also": also, "evaluate": both_scores} | changes)


def specify(recipe: Recipe, **more) -> RunSpec:
    start = make_spec(recipe.start, "adamw", test=False, point=recipe.start.grids["adamw"].points()[0])
    return replace(make_spec(recipe, **more), start=start)


def execute(folder: Path) -> None:
    recipe = make(folder)
    spec = specify(recipe)
    run = RunFolder.of(folder, recipe.name, spec.hash)
    pretraining.run(spec, recipe, run, folder, checkpoint_seconds=0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    execute(Path(sys.argv[1]))
