"""What a recipe must be, checked when it is made: each mistake is refused in one sentence."""

import json
import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, get_args

import torch

RESERVED = ("step",)  # names that a curve has of its own
MOST_TUNING_SEEDS = 1000  # confirmation's begin there


def require(holds: object, sentence: str) -> None:
    """Refuse in a sentence what does not hold."""
    if not holds:
        raise ValueError(sentence)


def is_number(value: Any) -> bool:
    """Say whether a value is a number that can be compared; numpy's are."""
    return isinstance(value, Real) and not isinstance(value, bool)


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON can hold them: a dtype by its name."""
    return {name: str(v) if isinstance(v, torch.dtype) else v for name, v in settings.items()}


def check_metric(metric: Any) -> None:
    """Refuse a metric without a name of its own or a direction."""
    name, better = metric.name, metric.higher_is_better
    usable = isinstance(name, str) and name and name not in RESERVED
    require(usable, f"A metric needs a name, and not {RESERVED[0]!r}, got {name!r}.")
    require(
        isinstance(better, bool),
        f"higher_is_better of the metric {name} must be True or False, got {better!r}.",
    )


def check_grid(grid: Any) -> None:
    """Refuse what is no setting of an optimizer."""
    for value in grid.lr:
        allowed = is_number(value) and 0 < value < math.inf
        require(allowed, f"lr of a grid must be numbers > 0, got {value!r}.")
    for value in grid.weight_decay:
        allowed = is_number(value) and 0 <= value < math.inf
        require(allowed, f"weight_decay of a grid must be numbers >= 0, got {value!r}.")
    named = all(isinstance(name, str) for name in grid.schedule)
    require(named, f"schedule of a grid must be names, got {grid.schedule!r}.")
    fixed = grid.settings
    named = isinstance(fixed, Mapping) and all(isinstance(name, str) for name in fixed)
    require(named, f"settings of a grid must be a dictionary by name, got {fixed!r}.")
    for name in ("lr", "weight_decay", "schedule"):
        require(
            name not in fixed,
            f"settings of a grid are what is fixed for all of it: say {name} as Grid({name}=...) instead.",
        )
    try:
        json.dumps(as_json(fixed), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"settings of a grid must be plain values, got {fixed!r} ({error}).") from None


def check_seeds(seeds: Any) -> None:
    """Refuse numbers of seeds that cannot be run."""
    for name in ("tune", "confirm"):
        value = getattr(seeds, name)
        require(_is_count(value), f"Seeds.{name} must be a whole number >= 1, got {value!r}.")
    require(
        seeds.tune <= MOST_TUNING_SEEDS,
        f"Seeds.tune must be at most {MOST_TUNING_SEEDS}, the first seed of confirmation, got {seeds.tune}.",
    )


def check_recipe(recipe: Any) -> None:
    """Refuse what cannot be run."""
    require(
        isinstance(recipe.name, str) and re.fullmatch(r"\w[\w.+ -]*", recipe.name),
        f"A recipe's name is also a folder's: letters, digits, spaces and . _ + - only, got {recipe.name!r}.",
    )
    _check_kinds(recipe)
    _check_numbers(recipe)
    _check_grids(recipe)


def _check_kinds(recipe: Any) -> None:
    from dualavg_bench.recipe import Metric, Precision, Scale, Seeds

    of = f"of recipe {recipe.name} must be"
    metric, seeds = recipe.metric, recipe.seeds
    require(
        isinstance(metric, Metric),
        f'metric {of} a Metric, such as Metric("accuracy", higher_is_better=True), got {metric!r}.',
    )
    require(
        not isinstance(recipe.model, torch.nn.Module),
        f"model {of} a function or a class that makes the network, anew for every run, got a network.",
    )
    for name in ("data", "model", "loss", "evaluate"):
        value = getattr(recipe, name)
        require(callable(value), f"{name} {of} a function, got {value!r}.")
    for name, allowed in (("precision", get_args(Precision)), ("scale", get_args(Scale))):
        value = getattr(recipe, name)
        require(value in allowed, f"{name} {of} one of {', '.join(allowed)}, got {value!r}.")
    require(isinstance(seeds, Seeds), f"seeds {of} Seeds(tune=.., confirm=..), got {seeds!r}.")


def _check_numbers(recipe: Any) -> None:
    of = f"of recipe {recipe.name} must be"
    counts = ["batch_size", "steps", "accumulate", "evaluations", "threads"]
    for name in counts + ([] if recipe.eval_batch_size is None else ["eval_batch_size"]):
        value = getattr(recipe, name)
        require(_is_count(value), f"{name} {of} a whole number >= 1, got {value!r}.")
    above, clip = recipe.diverged_above, recipe.clip_norm
    require(is_number(above) and above > 0, f"diverged_above {of} a number > 0, got {above!r}.")
    require(
        clip is None or (is_number(clip) and 0 < clip < math.inf),
        f"clip_norm {of} a number > 0, or None for no clipping, got {clip!r}.",
    )
    require(
        recipe.batch_size % recipe.accumulate == 0,
        f"batch_size {recipe.batch_size} of recipe {recipe.name} does not divide into "
        f"{recipe.accumulate} accumulated parts.",
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_grids(recipe: Any) -> None:
    from dualavg_bench.optimizers import SCHEDULES
    from dualavg_bench.recipe import Grid

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
        f"Recipe {name} names the schedules {', '.join(unknown)}, which are neither its own nor one of "
        f"{', '.join(SCHEDULES)}.",
    )
