"""The learning-rate schedules that grids can name, scaled to the number of steps."""

from collections.abc import Callable, Mapping

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from dualavg.schedules import (
    ExponentialTail,
    FlatThenDrop,
    StageWise,
    WarmupCosine,
    WarmupInverseSqrt,
    WarmupLinearDecay,
    WarmupStableDecay,
)

MakeSchedule = Callable[[torch.optim.Optimizer, int], LRScheduler]

SCHEDULES: dict[str, MakeSchedule] = {
    "constant": lambda optimizer, _: LambdaLR(optimizer, _one),
    "linear": lambda optimizer, steps: WarmupLinearDecay(optimizer, max(1, steps // 10), steps),
    "cosine": lambda optimizer, steps: WarmupCosine(optimizer, max(1, steps // 10), steps),
    "trapezoid": lambda optimizer, steps: WarmupStableDecay(
        optimizer, max(1, steps // 10), steps // 5, steps
    ),
    "stagewise": lambda optimizer, steps: StageWise(
        optimizer, [steps // 2, 3 * steps // 4], ramp=max(1, steps // 60)
    ),
    "inverse_sqrt": lambda optimizer, steps: WarmupInverseSqrt(optimizer, max(1, steps // 10)),
    "flat_drop": lambda optimizer, steps: FlatThenDrop(optimizer, 4 * steps // 5),
    # That of IWSLT'14, scaled from 50,000 steps.
    "tail": lambda optimizer, steps: ExponentialTail(
        optimizer, steps // 5, factor=1.0003 ** (50_000 / steps), warmup_steps=steps // 12
    ),
}


def _one(_: int) -> float:
    return 1.0


def make_schedule(
    name: str, own: Mapping[str, MakeSchedule], optimizer: torch.optim.Optimizer, steps: int
) -> LRScheduler:
    """Make a schedule by its name, one of the recipe's own or of `SCHEDULES`."""
    known = {**SCHEDULES, **own}
    if name not in known:
        raise ValueError(f"There is no schedule called {name!r}: give one of {', '.join(sorted(known))}.")
    return known[name](optimizer, steps)
