"""The paper's learning-rate schedules and two that are usual today, as torch LR schedulers.

Each sets a group's lr to its base lr times `factor(k)`, where k = 0, 1, .. counts calls of the scheduler's
`step()`: one per optimizer step or one per epoch, as you like. How momentum follows the lr (the paper raises
c_k where it lowers the lr) is the optimizer's business.

Sections and appendices are those of Jelassi and Defazio, "Dual Averaging is Surprisingly Effective for Deep
Learning Optimization", 2020, arXiv:2010.10502.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from torch.optim import Optimizer

from dualavg._schedule import Schedule, number, require, whole

__all__ = [
    "ExponentialTail",
    "FlatThenDrop",
    "StageWise",
    "WarmupCosine",
    "WarmupInverseSqrt",
    "WarmupLinearDecay",
    "WarmupStableDecay",
]


class StageWise(Schedule):
    r"""Stages, each `gamma` times the one before, joined by straight lines instead of cliffs.

    With $n$ milestones at or before step $k$, the last of them $m$, and $r$ the `ramp`:

    $$\text{factor}(k) = \gamma^{n-1} \left(1 - (1 - \gamma) \min(1, (k - m) / r)\right),
      \quad 1 \text{ where } n = 0$$

    A line starts at its milestone, and `ramp` steps later the next stage is reached. `ramp=0` is the cliff of
    torch's `MultiStepLR`.

    Args:
        optimizer: whose lr is moved.
        milestones: the steps at which a drop begins, increasing, at least `ramp` apart.
        gamma: what a drop multiplies the lr by.
        ramp: how many steps a drop takes.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> cifar10 = StageWise(optimizer, milestones=[150, 225], ramp=5)
        >>> [round(cifar10.factor(epoch), 3) for epoch in (0, 150, 151, 154, 155, 225, 230)]
        [1.0, 1.0, 0.82, 0.28, 0.1, 0.1, 0.01]

    References:
        Section 2, "modifications of existing stage-wise schemes", where the ramp is "a few epochs" and has no
        number; appendix C, CIFAR10 (epochs 150 and 225 of 300) and ImageNet (every 30 of 100).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        *,
        gamma: float = 0.1,
        ramp: int = 0,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        m = [whole("A milestone", k) for k in milestones]
        gamma, ramp = number("gamma", gamma), whole("ramp", ramp)
        gap = max(1, ramp)
        apart = all(b - a >= gap for a, b in pairwise(m))
        require(0 < gamma <= 1, f"gamma must be above 0 and at most 1, got {gamma}.")
        require(ramp >= 0, f"ramp must not be negative, got {ramp}.")
        require(all(k >= 0 for k in m), f"milestones must not be negative, got {m}.")
        require(apart, f"milestones must increase by at least {gap} (ramp={ramp}), got {m}.")
        self.milestones, self.gamma, self.ramp = m, gamma, ramp
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        n = bisect_right(self.milestones, step)
        since = step - self.milestones[n - 1] if n else 0
        if n == 0 or since >= self.ramp:
            return self.gamma**n
        return self.gamma ** (n - 1) * (1 - (1 - self.gamma) * since / self.ramp)


class WarmupLinearDecay(Schedule):
    r"""Linear warm-up, then a straight line to zero.

    With $w$ warm-up steps of $T$ in total:

    $$\text{factor}(k) = \begin{cases} (k+1) / w & k < w \\ (T-k) / (T-w) & w \le k < T \\
      0 & k \ge T \end{cases}$$

    The first step already moves, and so does the last: zero is reached when $T$ steps are done. Stop there:
    at `lr` 0, MDA does not stand still, but goes on to be pulled towards its starting point.

    Args:
        optimizer: whose lr is moved.
        warmup_steps: steps of the warm-up, the last of which has the full lr; 0 for none.
        total_steps: steps of the run, warm-up included.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> scheduler = WarmupLinearDecay(optimizer, warmup_steps=4, total_steps=8)
        >>> [scheduler.factor(k) for k in range(9)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    References:
        Section 2, "Linear decay ... the most effective post-warmup"; appendix C, RoBERTa (10,000 of 20,000).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        *,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        w, total = whole("warmup_steps", warmup_steps), whole("total_steps", total_steps)
        require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        require(total >= max(1, w), f"total_steps must be at least {max(1, w)}, got {total}.")
        self.warmup_steps, self.total_steps = w, total
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step >= self.total_steps:
            return 0.0
        return (self.total_steps - step) / (self.total_steps - self.warmup_steps)


class WarmupCosine(Schedule):
    r"""Linear warm-up, then half a period of a cosine.

    With $w$ warm-up steps of $T$ in total and $e$ the `end_factor`:

    $$\text{factor}(k) = \begin{cases} (k+1) / w & k < w \\
      e + (1-e) \left(1 + \cos(\pi (k-w) / (T-w))\right) / 2 & w \le k < T \\ e & k \ge T \end{cases}$$

    The first step already moves, and the end is reached when $T$ steps are done. Stop there: see
    `WarmupLinearDecay`.

    Args:
        optimizer: whose lr is moved.
        warmup_steps: steps of the warm-up, the last of which has the full lr; 0 for none.
        total_steps: steps of the run, warm-up included.
        end_factor: what the lr is multiplied by at the end.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> scheduler = WarmupCosine(optimizer, warmup_steps=2, total_steps=8)
        >>> [round(scheduler.factor(k), 3) for k in range(9)]
        [0.5, 1.0, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067, 0.0]

    References:
        Not in the paper. Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017,
        arXiv:1608.03983, equation 5, without restarts.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        *,
        end_factor: float = 0.0,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        w, total = whole("warmup_steps", warmup_steps), whole("total_steps", total_steps)
        end = number("end_factor", end_factor)
        require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        require(total >= max(1, w), f"total_steps must be at least {max(1, w)}, got {total}.")
        require(0 <= end <= 1, f"end_factor must be from 0 to 1, got {end}.")
        self.warmup_steps, self.total_steps, self.end_factor = w, total, end
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step >= self.total_steps:
            return self.end_factor
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.end_factor + (1 - self.end_factor) * (1 + math.cos(math.pi * done)) / 2


class WarmupStableDecay(Schedule):
    r"""Linear warm-up, flat, then a straight line down: the trapezoid, or WSD (warm-up, stable, decay).

    With $w$ warm-up steps and $d$ steps of decay of $T$ in total, and $e$ the `end_factor`:

    $$\text{factor}(k) = \begin{cases} \min(1, (k+1) / w) & k < T-d \\
      e + (1-e) (T-k) / d & T-d \le k < T \\ e & k \ge T \end{cases}$$

    A run can be made longer without starting again: load a checkpoint from before the decay. The first step
    already moves, and the end is reached when $T$ steps are done. Stop there: see `WarmupLinearDecay`.

    Args:
        optimizer: whose lr is moved.
        warmup_steps: steps of the warm-up, the last of which has the full lr; 0 for none.
        decay_steps: steps of the decay, the last ones of the run; 0 for none.
        total_steps: steps of the run, warm-up and decay included.
        end_factor: what the lr is multiplied by at the end.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> scheduler = WarmupStableDecay(optimizer, warmup_steps=2, decay_steps=4, total_steps=8)
        >>> [scheduler.factor(k) for k in range(9)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    References:
        Not in the paper. Zhai et al., "Scaling Vision Transformers", 2022, arXiv:2106.04560; Hu et al.,
        "MiniCPM", 2024, arXiv:2404.06395.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        decay_steps: int,
        total_steps: int,
        *,
        end_factor: float = 0.0,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        w, d = whole("warmup_steps", warmup_steps), whole("decay_steps", decay_steps)
        total, end = whole("total_steps", total_steps), number("end_factor", end_factor)
        require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        require(d >= 0, f"decay_steps must not be negative, got {d}.")
        require(total >= max(1, w + d), f"total_steps must be at least {max(1, w + d)}, got {total}.")
        require(0 <= end <= 1, f"end_factor must be from 0 to 1, got {end}.")
        self.warmup_steps, self.decay_steps, self.total_steps, self.end_factor = w, d, total, end
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        left = self.total_steps - step
        if left > self.decay_steps:
            return min(1.0, (step + 1) / max(1, self.warmup_steps))
        if left <= 0:
            return self.end_factor
        return self.end_factor + (1 - self.end_factor) * left / self.decay_steps


class WarmupInverseSqrt(Schedule):
    r"""Linear warm-up, then one over the square root of the step: the Adam baseline's schedule.

    With $w$ warm-up steps:

    $$\text{factor}(k) = \min\left((k+1) / w, \sqrt{w / (k+1)}\right)$$

    Args:
        optimizer: whose lr is moved.
        warmup_steps: steps of the warm-up, and the time scale of the decay; 0 is the same as 1.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=5e-4)
        >>> scheduler = WarmupInverseSqrt(optimizer, warmup_steps=4000)
        >>> [scheduler.factor(k) for k in (0, 1999, 3999, 15_999)]
        [0.00025, 0.5, 1.0, 0.5]

    References:
        Appendix C, IWSLT14 ("ADAM used the inverse-sqrt").
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        *,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        w = whole("warmup_steps", warmup_steps)
        require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        self.warmup_steps = w
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        w = max(1, self.warmup_steps)
        return min((step + 1) / w, math.sqrt(w / (step + 1)))


class ExponentialTail(Schedule):
    r"""Warm-up if wanted, flat, then divided by `factor` at every step: the paper's "polynomial decay".

    With $w$ warm-up steps, $a$ the `start` and $q$ the `factor`:

    $$\text{factor}(k) = \begin{cases} \min(1, (k+1) / w) & k < a \\ q^{-(k-a+1)} & k \ge a \end{cases}$$

    Args:
        optimizer: whose lr is moved.
        start: the first step whose lr is divided.
        factor: what the lr is divided by at each step from `start` on.
        warmup_steps: steps of the linear warm-up; 0 for none.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> iwslt = ExponentialTail(optimizer, warmup_steps=4000)
        >>> [round(iwslt.factor(k), 4) for k in (0, 3999, 9999, 10_000, 12_310)]
        [0.0003, 1.0, 1.0, 0.9997, 0.5]

    References:
        Appendix C, IWSLT14 (as in the example) and Wikitext (`start=18_240, factor=1.00001`).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start: int = 10_000,
        *,
        factor: float = 1.0003,
        warmup_steps: int = 0,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        w, start = whole("warmup_steps", warmup_steps), whole("start", start)
        factor = number("factor", factor)
        require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        require(start >= w, f"start must not be before the end of warm-up at {w}, got {start}.")
        require(1 <= factor < math.inf, f"factor must be finite and at least 1, got {factor}.")
        self.start, self.divisor, self.warmup_steps = start, factor, w
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        if step < self.start:
            return min(1.0, (step + 1) / max(1, self.warmup_steps))
        # A negative power ends at 0; one over a positive power would end in an OverflowError.
        return math.pow(self.divisor, self.start - step - 1)


class FlatThenDrop(Schedule):
    r"""Flat, then `gamma` times as much for the last steps, to settle.

    With $d$ the step `drop_at`:

    $$\text{factor}(k) = \begin{cases} 1 & k < d \\ \gamma & k \ge d \end{cases}$$

    Args:
        optimizer: whose lr is moved.
        drop_at: the first step of the lower lr.
        gamma: what the drop multiplies the lr by.
        groups: indices of the param groups to move; `None` is all, also those added later.
        last_epoch: as torch has it: the last step that was made, -1 for none.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> fastmri = FlatThenDrop(optimizer, drop_at=40)
        >>> [fastmri.factor(epoch) for epoch in (0, 39, 40, 49)]
        [1.0, 1.0, 0.1, 0.1]

    References:
        Appendix C, fastMRI (epoch 40 of 50).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        drop_at: int,
        *,
        gamma: float = 0.1,
        groups: Sequence[int] | None = None,
        last_epoch: int = -1,
    ) -> None:
        drop_at, gamma = whole("drop_at", drop_at), number("gamma", gamma)
        require(drop_at >= 0, f"drop_at must not be negative, got {drop_at}.")
        require(0 < gamma <= 1, f"gamma must be above 0 and at most 1, got {gamma}.")
        self.drop_at, self.gamma = drop_at, gamma
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        return self.gamma if step >= self.drop_at else 1.0
