"""The recipe: one typed, frozen value that holds everything that can change a result."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from dualavg_bench.recipe.data import Batch, Source, Splits
from dualavg_bench.recipe.samples import Passage, Picture
from dualavg_bench.recipe.schedules import SCHEDULES, MakeSchedule
from dualavg_bench.recipe.settings import (
    Grid,
    Metric,
    Precision,
    Report,
    Seeds,
    is_count,
    is_number,
    require,
)
from dualavg_bench.scales import SCALES, Scale

# Not settings of a run: functions count by their code, and a run has its own grid point and seed.
_NOT_SETTINGS = {
    *("data", "model", "loss", "evaluate", "samples", "schedules"),
    *("grids", "seeds", "metric", "also", "paper", "about", "expected", "batch_note"),
    *("start", "adapt"),  # a spec has the run that makes the start
}


@dataclass(frozen=True)
class Recipe:
    """One experiment at one scale.

    Args:
        name: what it is called, in folders and reports.
        scale: quick, mini or paper.
        metric: the score that decides; `evaluate` must return it under its name.
        data: `data(folder)` returns the splits; `folder` is that of `--data`, or one to write to.
        model: returns a new network; global generators are seeded before.
        loss: `loss(model, batch)`, a mean over the batch.
        evaluate: `evaluate(model, batches)` returns scores by name, among them `loss` and the metric. They
            must be finite for the untrained network: a run that diverges gets its score.
        batch_size: examples per optimizer step, over all processes and accumulations.
        steps: optimizer steps per run.
        grids: the settings of each optimizer, by its name in the registry.
        schedules: the recipe's own schedules, `make(optimizer, steps)`, beside those of `schedules.py`.
        accumulate: backward passes per optimizer step.
        precision: autocast dtype of forward passes; float16 scales the loss.
        clip_norm: largest norm of the gradient, or None for no clipping.
        compile: run the network through torch.compile.
        threads: CPU threads per run; they change the order of sums, and so the result.
        evaluations: evaluations on validation per run, the last one at its end.
        eval_batch_size: examples per batch of an evaluation; default: `batch_size`.
        report: whose scores decide: those of the network of the last step, or of the one with the best
            validation score of the run. Both are tested.
        seeds: numbers of seeds for tuning and for confirmation.
        also: a second score that `evaluate` returns under its name, such as the old task's in fine-tuning. It
            is measured and shown, and takes no part in any choice. It may be infinite.
        start: the recipe that makes the network all runs start from, with a grid of one point. It runs once.
        adapt: by optimizer, `adapt(model)` changes the network before training, such as into one with LoRA.
        samples: `samples(model, test)` returns a few pictures or passages, for the report to show.
        diverged_above: a run has diverged if its training loss exceeds this many times the first (or 0.1).
        paper: which part of the paper this is.
        about: a sentence for the report.
        expected: seconds per run on two cores, for `dualavg recipes`.
        batch_note: size of a batch, for `dualavg recipes`, if it is not counted in examples.
    """

    name: str
    metric: Metric
    data: Callable[[Path], Splits]
    model: Callable[[], torch.nn.Module]
    loss: Callable[[torch.nn.Module, Batch], Tensor]
    evaluate: Callable[[torch.nn.Module, Iterable[Batch]], dict[str, float]]
    batch_size: int
    steps: int
    grids: Mapping[str, Grid]
    scale: Scale = "quick"
    schedules: Mapping[str, MakeSchedule] = field(default_factory=dict)
    accumulate: int = 1
    precision: Precision = "float32"
    clip_norm: float | None = None
    compile: bool = False
    threads: int = 1
    evaluations: int = 10
    eval_batch_size: int | None = None
    report: Report = "last"
    seeds: Seeds = field(default_factory=Seeds)
    also: Metric | None = None
    start: "Recipe | None" = None
    adapt: Mapping[str, Callable[[torch.nn.Module], torch.nn.Module]] = field(default_factory=dict)
    samples: Callable[[torch.nn.Module, Source], list[Picture | Passage]] | None = None
    diverged_above: float = 10.0
    paper: str = ""
    about: str = ""
    expected: float | None = None
    batch_note: str = ""

    def __post_init__(self) -> None:
        """Validate."""
        require(
            isinstance(self.name, str) and re.fullmatch(r"\w[\w.+ -]*", self.name),
            f"The name of a recipe also names a folder: letters, digits, spaces and . _ + - only, "
            f"got {self.name!r}.",
        )
        _check_types(self)
        _check_numbers(self)
        _check_grids(self)
        _check_start(self)

    def settings(self) -> dict[str, Any]:
        """Return the settings of a run as JSON values: part of its hash."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_SETTINGS}
        if self.diverged_above == math.inf:
            values["diverged_above"] = "inf"  # JSON has no infinity
        also = None if self.also is None else [self.also.name, self.also.higher_is_better]
        return {**values, "metric": [self.metric.name, self.metric.higher_is_better], "also": also}


def _check_types(recipe: Recipe) -> None:
    must_be = f"of recipe {recipe.name} must be"
    metric, seeds = recipe.metric, recipe.seeds
    require(
        isinstance(metric, Metric),
        f'metric {must_be} a Metric, such as Metric("accuracy", higher_is_better=True), got {metric!r}.',
    )
    also = recipe.also
    require(also is None or isinstance(also, Metric), f"also {must_be} a Metric, or None, got {also!r}.")
    require(also is None or also.name != metric.name, f"also {must_be} another score than {metric.name}.")
    require(
        not isinstance(recipe.model, torch.nn.Module),
        f"model {must_be} a function or a class that returns a new network for every run, got a network.",
    )
    for name in ("data", "model", "loss", "evaluate"):
        value = getattr(recipe, name)
        require(callable(value), f"{name} {must_be} a function, got {value!r}.")
    choices = {"precision": get_args(Precision), "report": get_args(Report), "scale": SCALES}
    for name, allowed in choices.items():
        value = getattr(recipe, name)
        require(value in allowed, f"{name} {must_be} one of {', '.join(allowed)}, got {value!r}.")
    require(isinstance(seeds, Seeds), f"seeds {must_be} Seeds(tune=.., confirm=..), got {seeds!r}.")


def _check_numbers(recipe: Recipe) -> None:
    must_be = f"of recipe {recipe.name} must be"
    counts = ["batch_size", "steps", "accumulate", "evaluations", "threads"]
    for name in counts + ([] if recipe.eval_batch_size is None else ["eval_batch_size"]):
        value = getattr(recipe, name)
        require(is_count(value), f"{name} {must_be} a whole number >= 1, got {value!r}.")
    above, clip = recipe.diverged_above, recipe.clip_norm
    require(is_number(above) and above > 0, f"diverged_above {must_be} a number > 0, got {above!r}.")
    require(
        clip is None or (is_number(clip) and 0 < clip < math.inf),
        f"clip_norm {must_be} a number > 0, or None for no clipping, got {clip!r}.",
    )
    require(
        recipe.batch_size % recipe.accumulate == 0,
        f"batch_size {recipe.batch_size} of recipe {recipe.name} cannot be split into "
        f"{recipe.accumulate} equal parts (accumulate).",
    )


def _check_grids(recipe: Recipe) -> None:
    name, grids = recipe.name, recipe.grids
    require(grids, f"Recipe {name} has no grids: name at least one optimizer.")
    require(
        isinstance(grids, Mapping) and all(isinstance(grid, Grid) for grid in grids.values()),
        f'grids of recipe {name} must be Grids by optimizer, such as {{"mda": Grid(lr=(0.1, 1.0))}}.',
    )
    sizes = {optimizer: len(grid.points()) for optimizer, grid in grids.items()}
    require(
        len(set(sizes.values())) == 1 and 0 not in sizes.values(),
        f"Every optimizer of recipe {name} must get the same number of grid points, got {sizes}.",
    )
    named = {schedule for grid in grids.values() for schedule in grid.schedule}
    unknown = sorted(named - {*SCHEDULES, *recipe.schedules})
    require(
        not unknown,
        f"Recipe {name} has unknown schedules, {', '.join(unknown)}: give its own or one of "
        f"{', '.join(SCHEDULES)}.",
    )


def _check_start(recipe: Recipe) -> None:
    name, start, adapt = recipe.name, recipe.start, recipe.adapt
    unknown = sorted(set(adapt) - set(recipe.grids))
    require(not unknown, f"adapt of recipe {name} names {', '.join(unknown)}, which has no grid.")
    if start is None:
        return
    require(isinstance(start, Recipe), f"start of recipe {name} must be a Recipe, got {start!r}.")
    points = [point for grid in start.grids.values() for point in grid.points()]
    require(
        len(points) == 1 and start.start is None and not start.adapt,
        f"start of recipe {name} must have one optimizer with one grid point, and no start of its own.",
    )
    require(start.name != name, f"start of recipe {name} must have another name: both name folders.")
