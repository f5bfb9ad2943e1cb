"""What a network scores: `evaluate` asked, its answer checked, and a network that is not finite told apart.

A score library may raise on NaN instead of returning one. If the network is not finite, that is a divergence;
if it is, it is a mistake in the recipe, and shown with its place.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dualavg_bench.recipe import Batch, Recipe, RecipeError
from dualavg_bench.recipe.user_code import RecipeRaised, format_error, user_code
from dualavg_bench.run import outputs

Scores = dict[str, float | None]  # None where something besides loss and metric is not finite; it is left out
Batches = Callable[[], Iterator[Batch]]


def scores(recipe: Recipe, model: torch.nn.Module, batches: Batches, split: str) -> Scores | str:
    """Return what `evaluate` returns, or why the network has no score on the split of this name."""
    try:
        with user_code(recipe.name, "evaluate"):
            values = recipe.evaluate(model, batches())
    except RecipeError:
        raise
    except Exception as error:
        cause = (error.__cause__ if isinstance(error, RecipeRaised) else None) or error
        what = _not_finite(recipe, model, batches, cause)
        if what is None:
            raise
        return f"{what}, and evaluate raised {format_error(cause)}"
    checked = outputs.scores(recipe, values)
    for name in ("loss", recipe.metric.name):
        if not math.isfinite(checked[name]):
            return f"the {split} {name} is {checked[name]}"
    return {name: value if math.isfinite(value) else None for name, value in checked.items()}


def is_finite(model: torch.nn.Module) -> bool:
    """Say whether all that is trained of a network is finite; a mask, say, may be -inf on purpose."""
    return all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad)


def _sound(value: Any) -> bool:
    """Say whether outputs are without NaN and inf; -inf is what is masked."""
    if isinstance(value, Tensor):
        return not bool((value.isnan() | (value.isinf() & (value.real > 0))).any())
    if isinstance(value, Mapping):
        return all(map(_sound, value.values()))
    return all(map(_sound, value)) if isinstance(value, list | tuple) else True


def _not_finite(recipe: Recipe, model: torch.nn.Module, batches: Batches, error: BaseException) -> str | None:
    """Return what is not finite where `evaluate` raised: the network, its outputs or the score itself."""
    if not is_finite(model):
        return "the network's parameters are not finite"
    if isinstance(error, OverflowError):  # math.exp of a large loss, say
        return "the score is too large for a number"
    found = []

    def look(_module: torch.nn.Module, _inputs: Any, outputs: Any) -> None:
        if not _sound(outputs):
            found.append(True)
            raise FloatingPointError

    watch = model.register_forward_hook(look)
    try:
        recipe.evaluate(model, batches())
    except (Exception, SystemExit):  # noqa: BLE001, S110 - as before, or our own
        pass
    finally:
        watch.remove()
    return "the network's outputs are not finite" if found else None
