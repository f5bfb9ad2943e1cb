"""CIFAR-10, from dual averaging to MDA in two steps: the ablation of Section 4.5, figure 1 (d).

    dualavg study cifar10_ablation                           # quick: digits in CIFAR's format, a tiny network
    dualavg study cifar10_ablation --scale mini --data DIR   # CIFAR-10, a small network, two cores
    dualavg study cifar10_ablation --scale paper --data DIR  # PreAct ResNet-152, 300 epochs, one GPU

DIR holds `cifar-10-batches-py`, from https://www.cs.toronto.edu/~kriz/cifar.html.

Test accuracy of the paper at the last iterate, with the best setting:

    row                   optimizer    momentum  lambda         paper   at
    Dual averaging        da           0         lr             87.09%  lr 1, flat
    + Momentum            da+momentum  0.9       lr             90.80%  lr 2.5
    + lambda ~ sqrt(k+1)  mda          0.9       lr sqrt(k+1)   95.58%  not given

                    paper                 mini                  quick
    epochs          300                   100                   100
    steps           105,300               4,500                 1,000
    examples        45,000                4,500                 150
    parameters      58,148,938            603,802               19,930
    schedule        flat and stage-wise   the same              the same
    regularization  crops, flips, decay   the same              the same

Network, data, loss, evaluation, steps and departures are those of the recipe cifar10. The paper gives no
weight decay for the ablation; every row uses that of the CIFAR-10 experiment.
"""

from dataclasses import replace

from dualavg_bench.recipe import Grid, Recipe, Scale
from dualavg_bench.recipes import cifar10

SCHEDULES = ("constant", "stagewise")
LRS = {  # of dual averaging without and with momentum; those of MDA are the CIFAR-10 recipe's
    "quick": ((0.3, 1.0, 3.0, 10.0, 30.0), (0.3, 1.0, 3.0, 10.0, 30.0)),
    "mini": ((0.3, 1.5, 6.0, 30.0), (0.3, 1.5, 6.0, 30.0)),
    "paper": ((0.1, 0.3, 1.0, 3.0, 10.0), (0.25, 0.8, 2.5, 8.0, 25.0)),
}


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment: the CIFAR-10 recipe with the rows of the ablation as optimizers."""
    base = cifar10.recipe(scale)
    plain, momentum = LRS[scale]
    lrs = {"da": plain, "da+momentum": momentum, "mda": base.grids["mda"].lr}
    return replace(
        base,
        name="cifar10_ablation",
        grids={row: Grid(lr, (cifar10.DECAY,), SCHEDULES) for row, lr in lrs.items()},
        paper="Section 4.5, figure 1 (d)",
        about=f"The ablation: dual averaging, with momentum, with growing weights. {base.about}",
    )
