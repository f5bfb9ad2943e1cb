"""CIFAR-10, from dual averaging to MDA in two steps: the ablation of Section 4.5, figure 1 (d).

    dualavg study cifar10_ablation                           # quick: digits in CIFAR's format, a tiny network
    dualavg study cifar10_ablation --scale mini --data DIR   # CIFAR-10, a small network, two cores
    dualavg study cifar10_ablation --scale paper --data DIR  # PreAct ResNet-152, 300 epochs, one GPU

DIR holds `cifar-10-batches-py`, from https://www.cs.toronto.edu/~kriz/cifar.html.

Test accuracy of the paper at the last iterate, with the best setting. Ours, on validation: quick, two seeds.

    row                   optimizer    momentum  lambda         paper   at             ours  at
    Dual averaging        da           0         lr             87.09%  lr 1, flat     79%   lr 3, stagewise
    + Momentum            da+momentum  0.9       lr             90.80%  lr 2.5         79%   lr 10, stagewise
    + lambda ~ sqrt(k+1)  mda          0.9       lr sqrt(k+1)   95.58%  not given      86%   lr 1, stagewise

Network, data, loss, evaluation, steps and departures are those of the recipe cifar10. The paper gives no
weight decay for the ablation; every row uses that of the CIFAR-10 experiment.
"""

from dataclasses import replace

from dualavg_bench.recipe import Grid, Recipe, Scale
from dualavg_bench.recipes import cifar10

SCHEDULES = ("constant", "stagewise")
SMALL = {  # quick and mini
    "da": (0.3, 1.0, 3.0, 10.0, 30.0),
    "da+momentum": (0.3, 1.0, 3.0, 10.0, 30.0),
    "mda": (0.1, 0.3, 1.0, 3.0, 10.0),
}
PAPER = {
    "da": (0.1, 0.3, 1.0, 3.0, 10.0),
    "da+momentum": (0.25, 0.8, 2.5, 8.0, 25.0),
    "mda": (0.25, 0.8, 2.5, 8.0, 25.0),
}


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment: the CIFAR-10 recipe with the rows of the ablation as optimizers."""
    base = cifar10.recipe(scale)
    lrs = PAPER if scale == "paper" else SMALL
    return replace(
        base,
        name="cifar10_ablation",
        grids={row: Grid(lr, (cifar10.DECAY,), SCHEDULES) for row, lr in lrs.items()},
        paper="Section 4.5, figure 1 (d)",
        about=f"The ablation: dual averaging, with momentum, with growing weights. {base.about}",
    )
