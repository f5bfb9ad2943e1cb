"""The learning-rate schedules that grids name, in proportion to the length of a run."""

from collections.abc import Callable, Mapping

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from dualavg import schedules

MakeSchedule = Callable[[torch.optim.Optimizer, int], LRScheduler]

SCHEDULES: dict[str, MakeSchedule] = {
    "constant": lambda optimizer, _: LambdaLR(optimizer, _one),
    "linear": lambda optimizer, steps: schedules.WarmupLinearDecay(optimizer, max(1, steps // 10), steps),
    "stagewise": lambda optimizer, steps: schedules.StageWise(
        optimizer, [steps // 2, 3 * steps // 4], ramp=max(1, steps // 60)
    ),
    "inverse_sqrt": lambda optimizer, steps: schedules.WarmupInverseSqrt(optimizer, max(1, steps // 10)),
    "flat_drop": lambda optimizer, steps: schedules.FlatThenDrop(optimizer, 4 * steps // 5),
    # As IWSLT'14's, in proportion to a run of 50,000 steps.
    "tail": lambda optimizer, steps: schedules.ExponentialTail(
        optimizer, steps // 5, factor=1.0003 ** (50_000 / steps), warmup_steps=steps // 12
    ),
}


def _one(_: int) -> float:
    return 1.0


def make_schedule(
    name: str, own: Mapping[str, MakeSchedule], optimizer: torch.optim.Optimizer, steps: int
) -> LRScheduler:
    """Make a schedule by its name: the recipe's own, or one of ours."""
    known = {**SCHEDULES, **own}
    if name not in known:
        raise ValueError(f"There is no schedule called {name!r}: give one of {', '.join(sorted(known))}.")
    return known[name](optimizer, steps)
