"""My experiment: which optimizer for this model on this data, and at which step size?

    dualavg study THIS_FILE.py

This recipe runs as it is: a small network separates two spirals. Put your own data, model, loss and metric
in the four functions below, and your own numbers at the end.
"""

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualavg_bench.recipe import Grid, Metric, Recipe, Seeds, Splits

METRIC = Metric("accuracy", higher_is_better=True, unit="%")  # unit="" if it has none


# 1. Data. `folder` is that of --data, or studies/data; every run calls this function. A split has a length
#    and returns batches. FromDataset, of dualavg_bench.recipe, makes a split of a torch Dataset:
#    Splits(FromDataset(train), FromDataset(valid), FromDataset(test)).
class Spirals:
    def __init__(self, examples: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(2, (examples,), generator=rng)
        turn = 3 * math.pi * torch.rand(examples, generator=rng).sqrt()
        angle = turn + math.pi * self.targets
        points = torch.stack((angle.cos(), angle.sin()), dim=1) * turn[:, None]
        self.inputs = (points + 0.3 * torch.randn(examples, 2, generator=rng)) / 5

    def __len__(self) -> int:
        return len(self.targets)

    # `rng` is a generator for augmentation in training. In evaluation it is None: nothing may be random.
    def batch(self, indices: torch.Tensor, rng: torch.Generator | None):
        return self.inputs[indices], self.targets[indices]


def data(folder: Path) -> Splits:
    # The step size is chosen on `valid`; `test` is read once, at the chosen one.
    return Splits(train=Spirals(2000, seed=1), valid=Spirals(500, seed=2), test=Spirals(1000, seed=3))


# 2. The network. Global generators are seeded before this is called.
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


# 3. The loss of a batch: a mean over its examples.
def loss(model: nn.Module, batch) -> torch.Tensor:
    inputs, targets = batch
    return cross_entropy(model(inputs), targets)


# 4. The scores, by name: "loss" and the metric must be among them.
def evaluate(model: nn.Module, batches) -> dict[str, float]:
    total, correct, n = 0.0, 0, 0
    for inputs, targets in batches:
        outputs = model(inputs)
        total += cross_entropy(outputs, targets, reduction="sum").item()
        correct += (outputs.argmax(1) == targets).sum().item()
        n += len(targets)
    return {"loss": total / n, "accuracy": 100 * correct / n}


# 5. The numbers. Every optimizer must have the same number of grid points (lr x weight_decay x schedule). If
#    a best lr is at the end of its grid, all grids are extended. Schedules: constant, linear, cosine,
#    trapezoid, stagewise, inverse_sqrt, flat_drop, tail. Optimizers: mda, da, da+momentum, sgd, adam, adamw,
#    or a dotted path, such as "madgrad.MADGRAD" (lr like Adam's) or "schedulefree.SGDScheduleFree" (constant,
#    lr to 10 x SGD's). Without weight_decay an optimizer gets its class's default: 0.01 for adamw, 0 for the
#    other five.
#    Further settings and their defaults: accumulate=1, precision="float32", clip_norm=None, compile=False,
#    threads=1, evaluations=10, eval_batch_size=None, report="last" (or "best": the network with the best
#    validation score), diverged_above=10.0 times the first training loss; see
#    help(dualavg_bench.recipe.Recipe).
def recipe(scale: str = "quick") -> Recipe:
    return Recipe(
        name="spirals",
        scale=scale,
        about="A small network separates two spirals.",
        metric=METRIC,
        data=data,
        model=model,
        loss=loss,
        evaluate=evaluate,
        batch_size=64,
        steps=400,
        seeds=Seeds(tune=2, confirm=5),
        grids={
            "mda": Grid(lr=(0.3, 1.0, 3.0, 10.0), schedule=("linear",)),  # about ten times SGD's
            "sgd": Grid(lr=(0.03, 0.1, 0.3, 1.0), schedule=("linear",)),
            "adam": Grid(lr=(0.001, 0.003, 0.01, 0.03), schedule=("linear",)),
        },
    )
