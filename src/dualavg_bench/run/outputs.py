"""Validates what the functions of a recipe return."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualavg_bench.recipe import Recipe, RecipeError
from dualavg_bench.recipe.settings import RESERVED_NAMES
from dualavg_bench.recipe.user_code import user_code


def network(recipe: Recipe, optimizer: str) -> torch.nn.Module:
    """Return a new network of a recipe, as this optimizer trains it."""
    with user_code(recipe.name, "model"):
        model = recipe.model()
    if optimizer in recipe.adapt:
        with user_code(recipe.name, "adapt"):
            model = recipe.adapt[optimizer](model)
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(
            f"model of recipe {recipe.name} must return a torch.nn.Module, got {type(model).__name__}."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise RecipeError(f"The network of recipe {recipe.name} has no parameters to train.")
    return model


def loss(recipe: Recipe, value: Any) -> Tensor:
    """Return the value of `loss` if it can be trained on."""
    if isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad:
        return value
    got = type(value).__name__
    if isinstance(value, Tensor):
        got = f"shape {tuple(value.shape)}{'' if value.requires_grad else ', detached'}"
    raise RecipeError(
        f"The loss of recipe {recipe.name} must be one number computed from the network's parameters, "
        f"got {got}."
    )


def scores(recipe: Recipe, values: Any) -> dict[str, float]:
    """Return the scores of `evaluate` as floats."""
    evaluate = f"evaluate of recipe {recipe.name}"
    if not isinstance(values, Mapping):
        raise RecipeError(
            f"{evaluate} must return a dictionary with 'loss' and {recipe.metric.name!r}, "
            f"got {type(values).__name__}."
        )
    also = [] if recipe.also is None else [recipe.also.name]
    for name in ("loss", recipe.metric.name, *also):
        if name not in values:
            raise RecipeError(f"{evaluate} does not return {name!r}.")
    for name in values:
        if not isinstance(name, str) or name in RESERVED_NAMES:
            raise RecipeError(
                f"{evaluate} returns a score called {name!r}: names must be text, and not "
                f"{' or '.join(map(repr, RESERVED_NAMES))}."
            )
    return {name: _number(value, f"{evaluate} returns {name!r}") for name, value in values.items()}


def _number(value: Any, returned: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(f"{returned}, which is not a number ({error}).") from None
