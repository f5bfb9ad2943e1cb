"""A recipe of one line through noise, and the means to run it in this process."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from dualavg_bench.recipe import Grid, Metric, Point, Recipe, Splits
from dualavg_bench.run import training
from dualavg_bench.run.data import fingerprint
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult


class Lines:
    """A line through noise; remembers which examples it was asked for, and gives NaN when told."""

    def __init__(self, n: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(n, 6, generator=rng)
        self.targets = self.inputs.sum(1, keepdim=True).sin()
        self.asked: list[list[int]] = []
        self.noise: list[float] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices, rng):
        inputs = self.inputs[indices]
        if rng is not None:
            self.asked.append(indices.tolist())
            jitter = torch.randn(inputs.shape, generator=rng)
            self.noise.append(jitter.sum().item())
            inputs = inputs + 0.01 * jitter
        return inputs, self.targets[indices]


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )


def loss(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def evaluate(model, batches):
    values = [loss(model, batch).item() for batch in batches]
    return {"loss": sum(values) / len(values), "error": sum(values) / len(values)}


def make_recipe(splits: Splits | None = None, **changes: Any) -> Recipe:
    splits = splits or Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))
    recipe = Recipe(
        name="lines",
        metric=Metric("error", higher_is_better=False),
        data=lambda _: splits,
        model=network,
        loss=loss,
        evaluate=evaluate,
        batch_size=16,
        steps=60,
        evaluations=6,
        grids={"mda": Grid(lr=(1.0,)), "sgd": Grid(lr=(0.1,)), "adam": Grid(lr=(0.01,))},
    )
    return dataclasses.replace(recipe, **changes)


def make_spec(recipe: Recipe, optimizer: str = "mda", lr: float = 1.0, seed: int = 0, **more: Any) -> RunSpec:
    values = {"test": True, "point": Point(lr, 0.0, "linear"), **more}
    values = {"optimizer_class": "", "optimizer_settings": {}, **values}
    if "data" not in values:
        values["data"] = fingerprint(recipe.data(Path()), test=values["test"])
    return RunSpec(
        recipe="lines",
        source="",
        settings=recipe.settings(),
        optimizer=optimizer,
        seed=seed,
        versions={},
        **values,
    )


def execute(folder: Path, recipe: Recipe, spec: RunSpec, stop_at: tuple[int, ...] = ()) -> RunResult:
    """Run to the end, cut off and taken up again after the given windows."""
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked in stop_at

    run = RunFolder.of(folder, recipe.name, spec.hash)
    for _ in stop_at:
        with pytest.raises(training.Interrupted):
            training.run(spec, recipe, run, folder, should_stop=should_stop)
    return training.run(spec, recipe, run, folder, should_stop=should_stop)


def numbers(result: RunResult) -> dict[str, Any]:
    """What two executions of one run have in common to the last bit."""
    return result.model_dump(include={"train", "valid", "test", "test_best", "status", "diverged_at"})


def steps_of(answer: Any) -> Any:
    """Return an `evaluate` that gives the right answer to the untrained network, and then this one."""
    asked = []

    def answers(model: Any, batches: Any) -> Any:
        asked.append(1)
        right = evaluate(model, batches)
        return right if len(asked) <= 2 else answer(right)

    return answers
