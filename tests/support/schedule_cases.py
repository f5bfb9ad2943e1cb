"""Every schedule, and the small optimizers that they are tried on."""

import io

import pytest
import torch

from dualavg import MDA
from dualavg.schedules import (
    ExponentialTail,
    FlatThenDrop,
    StageWise,
    WarmupCosine,
    WarmupInverseSqrt,
    WarmupLinearDecay,
    WarmupStableDecay,
)

# Every schedule, short enough that STEPS steps see all of it.
STEPS = 24
CASES = {
    "stage_wise": lambda opt, **kw: StageWise(opt, [5, 13], gamma=0.3, ramp=4, **kw),
    "stage_wise_cliff": lambda opt, **kw: StageWise(opt, [5, 13], **kw),
    "warmup_linear_decay": lambda opt, **kw: WarmupLinearDecay(opt, 3, 20, **kw),
    "warmup_cosine": lambda opt, **kw: WarmupCosine(opt, 3, 20, **kw),
    "warmup_cosine_above_zero": lambda opt, **kw: WarmupCosine(opt, 0, 20, end_factor=0.1, **kw),
    "warmup_stable_decay": lambda opt, **kw: WarmupStableDecay(opt, 3, 7, 20, **kw),
    "warmup_inverse_sqrt": lambda opt, **kw: WarmupInverseSqrt(opt, 7, **kw),
    "exponential_tail": lambda opt, **kw: ExponentialTail(opt, 9, factor=1.07, warmup_steps=6, **kw),
    "flat_then_drop": lambda opt, **kw: FlatThenDrop(opt, 11, **kw),
}
OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, MDA]

every_schedule = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
torch_26_warns = pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
every_optimizer = pytest.mark.parametrize("optimizer_class", OPTIMIZERS)


def two_groups(optimizer_class=torch.optim.SGD, lrs=(0.3, 0.07)):
    """An optimizer with two groups, of which the second has its own lr."""
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))
    return optimizer_class([{"params": [a]}, {"params": [b], "lr": lrs[1]}], lr=lrs[0])


def lrs_of(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def params_of(optimizer):
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]


def train(optimizer, scheduler, steps):
    """Descend 0.5 |p|^2; return the lrs each step was made with."""
    used = []
    for _ in range(steps):
        used.append(lrs_of(optimizer))
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = p.detach().clone()
        optimizer.step()
        scheduler.step()
    return used


def factors(schedule, steps=STEPS):
    return [schedule.factor(k) for k in range(steps)]


def round_trip(state):
    """Write to a file and read back, admitting nothing that could run code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
