"""The scores of a network: calls a recipe's `evaluate`, and tells divergences from mistakes.

Libraries of scores may raise on NaN instead of returning it. If the network or its outputs are not finite,
the run has diverged; otherwise the recipe has a mistake.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dualavg_bench.recipe import Batch, Recipe, RecipeError
from dualavg_bench.recipe.user_code import RecipeRaised, format_error, user_code
from dualavg_bench.run import outputs

Scores = dict[str, float | None]  # None if a score other than loss and metric is not finite
Batches = Callable[[], Iterator[Batch]]


def scores(recipe: Recipe, model: torch.nn.Module, batches: Batches, split: str) -> Scores | str:
    """Return the scores on a split, or the reason why the network has none."""
    try:
        with user_code(recipe.name, "evaluate"):
            values = recipe.evaluate(model, batches())
    except RecipeError:
        raise
    except Exception as error:
        cause = (error.__cause__ if isinstance(error, RecipeRaised) else None) or error
        reason = _not_finite(recipe, model, batches, cause)
        if reason is None:
            raise
        return f"{reason}, and evaluate raised {format_error(cause)}"
    checked = outputs.scores(recipe, values)
    for name in ("loss", recipe.metric.name):
        if not math.isfinite(checked[name]):
            return f"the {split} {name} is {checked[name]}"
    return {name: value if math.isfinite(value) else None for name, value in checked.items()}


def is_finite(model: torch.nn.Module) -> bool:
    """Return whether all trained parameters are finite; others, such as masks, may be -inf."""
    return all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad)


def _is_sound(value: Any) -> bool:
    """Return whether outputs have no NaN and no inf; masked outputs are -inf."""
    if isinstance(value, Tensor):
        return not bool((value.isnan() | (value.isinf() & (value.real > 0))).any())
    if isinstance(value, Mapping):
        return all(map(_is_sound, value.values()))
    return all(map(_is_sound, value)) if isinstance(value, list | tuple) else True


def _not_finite(recipe: Recipe, model: torch.nn.Module, batches: Batches, error: BaseException) -> str | None:
    """Return what is not finite after `evaluate` raised: the network, its outputs or the score; or None."""
    if not is_finite(model):
        return "the network's parameters are not finite"
    if isinstance(error, OverflowError):  # such as math.exp of a large loss
        return "the score is too large for a number"
    unsound = []

    def check(_module: torch.nn.Module, _inputs: Any, outputs: Any) -> None:
        if not _is_sound(outputs):
            unsound.append(True)
            raise FloatingPointError

    hook = model.register_forward_hook(check)
    try:
        recipe.evaluate(model, batches())
    except (Exception, SystemExit):  # noqa: BLE001, S110 - the same error again, or ours
        pass
    finally:
        hook.remove()
    return "the network's outputs are not finite" if unsound else None
