"""Code of a recipe that raises: a divergence if the network is not finite, a mistake if it is."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lines import execute, loss, make_recipe, make_spec, network, steps_of

from dualavg_bench.recipe.user_code import RecipeRaised

NAN, INF = math.nan, math.inf


def strict_evaluate(model: Any, batches: Any) -> dict[str, float]:
    """As a library of scores that takes no NaN."""
    outputs = [model(inputs) for inputs, _ in batches]
    if not all(map(torch.Tensor.all, map(torch.isfinite, outputs))):
        raise ValueError("Input contains NaN.")
    return {"loss": 1.0, "error": 1.0}


def spoil(value: float) -> Any:
    """Return an optimizer's schedule that sets parameters to a value after ten steps."""

    def make(optimizer: Any, steps: int) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor(optimizer))

    def factor(optimizer: Any) -> Any:
        def of(step: int) -> float:
            if step >= 10:
                for p in optimizer.param_groups[0]["params"]:
                    p.data.fill_(value)
            return 0.0

        return of

    return make


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (NAN, "the network's parameters are not finite, and evaluate raised ValueError: Input contains NaN"),
        (3e38, "the network's outputs are not finite, and evaluate raised ValueError: Input contains NaN"),
    ],
)
def test_an_evaluation_that_refuses_what_is_not_finite_is_a_divergence(
    value: float, why: str, tmp_path: Path
) -> None:
    recipe = make_recipe(
        model=lambda: torch.nn.Linear(6, 1), evaluate=strict_evaluate, schedules={"linear": spoil(value)}
    )
    result = execute(tmp_path, recipe, make_spec(recipe, "sgd", lr=1e-9))
    assert (result.status, result.diverged_at, result.why) == ("diverged", 10, why)
    assert result.test == {"loss": 1.0, "error": 1.0}


def test_an_evaluation_that_raises_on_a_sound_network_is_a_mistake(tmp_path: Path) -> None:
    def wrong(_: Any) -> Any:
        raise ValueError("Input contains NaN.")

    recipe = make_recipe(evaluate=steps_of(wrong))
    with pytest.raises(RecipeRaised, match="evaluate of recipe lines raised ValueError: Input contains NaN"):
        execute(tmp_path, recipe, make_spec(recipe))


class Masked(torch.nn.Linear):
    """With a mask, as networks for text have, and outputs that it is seen in."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        self.register_buffer("mask", torch.tensor([0.0, -INF]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) + self.mask


def test_a_mask_is_no_divergence(tmp_path: Path) -> None:
    def masked_loss(model: Any, batch: Any) -> Any:
        return (model(batch[0])[:, :1] - batch[1]).square().mean()

    def wrong(model: Any, batches: Any) -> Any:
        values = [masked_loss(model, batch).item() for batch in batches]
        asked.append(1)
        return {"loss": values[0], "error": values[0]} if len(asked) <= 2 else {}["error"]

    asked: list[int] = []
    recipe = make_recipe(model=Masked, loss=masked_loss, evaluate=wrong)
    with pytest.raises(RecipeRaised, match="evaluate of recipe lines raised KeyError"):
        execute(tmp_path, recipe, make_spec(recipe, lr=0.05))


def test_a_score_too_large_for_a_number_is_a_divergence(tmp_path: Path) -> None:
    recipe = make_recipe(evaluate=steps_of(lambda right: {**right, "error": math.exp(1e4)}))
    result = execute(tmp_path, recipe, make_spec(recipe))
    assert result.status == "diverged"
    assert result.why.startswith("the score is too large for a number")


def test_a_loss_that_refuses_what_is_not_finite_is_a_divergence(tmp_path: Path) -> None:
    def strict_loss(model: Any, batch: Any) -> Any:
        torch.distributions.Normal(model(batch[0]), 1.0, validate_args=True)  # raises on NaN
        return loss(model, batch)

    recipe = make_recipe(loss=strict_loss, model=network, schedules={"linear": spoil(NAN)}, evaluations=1)
    result = execute(tmp_path, recipe, make_spec(recipe, "sgd", lr=1e-9))
    assert (result.status, result.diverged_at) == ("diverged", 11)
    assert result.why == "the network's parameters are not finite"
