"""CIFAR-10, from dual averaging to MDA in two steps: the ablation of Section 4.5, figure 1 (d).

    dualavg study cifar10_ablation                           # quick: digits as CIFAR, a tiny network
    dualavg study cifar10_ablation --scale mini --data DIR   # CIFAR-10, a small network, two cores
    dualavg study cifar10_ablation --scale paper --data DIR  # PreAct ResNet-152, 300 epochs, one GPU

DIR holds `cifar-10-batches-py`, from https://www.cs.toronto.edu/~kriz/cifar.html.

Test accuracy of the paper, the last iterate's, and where it was best:

    Dual averaging          da             no momentum, lambda = lr             87.09%  lr 1, flat
    + Momentum              da+momentum    momentum 0.9, lambda = lr            90.80%  lr 2.5
    + lambda ~ sqrt(k+1)    mda            momentum 0.9, lambda = lr sqrt(k+1)  95.58%  not said

Ours, on validation, two seeds: quick, 79% (lr 3), 79% (lr 10) and 86% (lr 1), all of them stage-wise.

Network, data, loss, evaluation and steps are those of the cifar10 recipe, its departures too. The paper names
no weight decay for the ablation: each row has that of its CIFAR-10 experiment.
"""

from dataclasses import replace

from dualavg_bench.recipe import Grid, Recipe, Scale
from dualavg_bench.recipes import cifar10

SCHEDULES = ("constant", "stagewise")
LRS = {
    "quick": {
        "da": (0.3, 1.0, 3.0, 10.0, 30.0),
        "da+momentum": (0.3, 1.0, 3.0, 10.0, 30.0),
        "mda": (0.1, 0.3, 1.0, 3.0, 10.0),
    },
    "mini": {
        "da": (0.3, 1.0, 3.0, 10.0, 30.0),
        "da+momentum": (0.3, 1.0, 3.0, 10.0, 30.0),
        "mda": (0.1, 0.3, 1.0, 3.0, 10.0),
    },
    "paper": {
        "da": (0.1, 0.3, 1.0, 3.0, 10.0),
        "da+momentum": (0.25, 0.8, 2.5, 8.0, 25.0),
        "mda": (0.25, 0.8, 2.5, 8.0, 25.0),
    },
}


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment: the CIFAR-10 recipe with the rows of the ablation for optimizers."""
    base = cifar10.recipe(scale)
    return replace(
        base,
        name="cifar10_ablation",
        grids={row: Grid(lrs, (cifar10.DECAY,), SCHEDULES) for row, lrs in LRS[scale].items()},
        paper="Section 4.5, figure 1 (d)",
        about=f"The ablation: dual averaging, with momentum, with growing weights. {base.about}",
    )
