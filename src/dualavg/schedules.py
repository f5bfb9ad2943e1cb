"""The paper's learning-rate schedules, as torch LR schedulers.

Each sets a group's lr to its base lr times `factor(k)`, where k = 0, 1, .. counts calls of the scheduler's
`step()`: one per optimizer step or one per epoch, as you like. How momentum follows the lr (the paper raises
c_k where it lowers the lr) is the optimizer's business.

Sections and appendices are those of Jelassi and Defazio, "Dual Averaging is Surprisingly Effective for Deep
Learning Optimization", 2020, arXiv:2010.10502.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, _warn_get_lr_called_within_step

__all__ = ["ExponentialTail", "FlatThenDrop", "StageWise", "WarmupInverseSqrt", "WarmupLinearDecay"]


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


def _whole(name: str, value: object) -> int:
    _require(isinstance(value, Integral), f"{name} must be a whole number, got {value!r}.")
    return int(cast(int, value))


def _number(name: str, value: object) -> float:
    _require(isinstance(value, Real), f"{name} must be a number, got {value!r}.")
    return float(cast(float, value))


def _copy(lr: float | Tensor) -> float | Tensor:
    return lr.clone() if isinstance(lr, Tensor) else lr


class _Schedule(LRScheduler, ABC):
    """The torch plumbing; a subclass holds its settings and `factor`."""

    def __init__(self, optimizer: Optimizer, groups: Sequence[int] | None, last_epoch: int) -> None:
        if groups is not None:
            last = len(optimizer.param_groups) - 1
            listed = isinstance(groups, Sequence) and not isinstance(groups, str)
            _require(listed, f"groups must be a list of indices of param groups, got {groups!r}.")
            groups = [_whole("An index in groups", i) for i in groups]
            known = all(0 <= i <= last for i in groups)
            _require(known, f"groups must be among the optimizer's 0 to {last}, got {groups}.")
        self.groups = groups
        super().__init__(optimizer, last_epoch)

    @abstractmethod
    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""

    def get_lr(self) -> list[float | Tensor]:
        """Return the groups' next lrs; what other schedulers did to them stays in."""
        _warn_get_lr_called_within_step(self)
        joined = len(self.base_lrs)
        self._join()
        return [
            self._next(group["lr"], self.base_lrs[i], joins=i >= joined)
            if self._moves(i)
            else _copy(group["lr"])
            for i, group in enumerate(self.optimizer.param_groups)
        ]

    def _get_closed_form_lr(self) -> list[float | Tensor]:
        self._join()
        now = self.factor(self.last_epoch)
        return [
            self.base_lrs[i] * now if self._moves(i) else _copy(group["lr"])
            for i, group in enumerate(self.optimizer.param_groups)
        ]

    def _moves(self, i: int) -> bool:
        return self.groups is None or i in self.groups

    def _join(self) -> None:
        """Give a base lr to the groups that were added since the last step, if we move them."""
        if self.groups is None:
            for group in self.optimizer.param_groups[len(self.base_lrs) :]:
                base_lr = group.setdefault("initial_lr", _copy(group["lr"]))
                # A new list: a state_dict that somebody holds shares the old one.
                self.base_lrs = [*self.base_lrs, _copy(base_lr)]

    def _next(self, lr: float | Tensor, base_lr: float | Tensor, *, joins: bool) -> float | Tensor:
        k = self.last_epoch
        now = self.factor(k)
        before = 1.0 if joins or k == 0 else self.factor(k - 1)
        if before == 0:
            return base_lr * now
        # lr_k = lr_{k-1} factor(k) / factor(k-1), whoever else has a factor in lr_{k-1} ...
        ours, ratio = [before], now / before
        if self._step_count == 1 and k > 0:
            # Made with last_epoch >= 0: a fresh lr, or a checkpoint's that is already at step k.
            ours, ratio = [1.0, before], 1.0
        result = lr * ratio
        # ... and where nobody has, base_lr factor(k): no rounding adds up over the steps.
        for factor in ours:
            alone = lr == base_lr * factor
            if isinstance(alone, Tensor):  # where, not if: nobody waits for the GPU
                result = torch.where(alone, base_lr * now, result)
            elif alone:
                result = base_lr * now
        return result

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied optimizer loses torch's wrapper around its step(), and torch would warn that the
        # user has overridden it; it looks only where _step_count is 1.
        self.__dict__.update(state)
        self._step_count = max(self._step_count, 2)


class StageWise(_Schedule):
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
        m = [_whole("A milestone", k) for k in milestones]
        gamma, ramp = _number("gamma", gamma), _whole("ramp", ramp)
        gap = max(1, ramp)
        apart = all(b - a >= gap for a, b in pairwise(m))
        _require(0 < gamma <= 1, f"gamma must be above 0 and at most 1, got {gamma}.")
        _require(ramp >= 0, f"ramp must not be negative, got {ramp}.")
        _require(all(k >= 0 for k in m), f"milestones must not be negative, got {m}.")
        _require(apart, f"milestones must increase by at least {gap} (ramp={ramp}), got {m}.")
        self.milestones, self.gamma, self.ramp = m, gamma, ramp
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        n = bisect_right(self.milestones, step)
        since = step - self.milestones[n - 1] if n else 0
        if n == 0 or since >= self.ramp:
            return self.gamma**n
        return self.gamma ** (n - 1) * (1 - (1 - self.gamma) * since / self.ramp)


class WarmupLinearDecay(_Schedule):
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
        w, total = _whole("warmup_steps", warmup_steps), _whole("total_steps", total_steps)
        _require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        _require(total >= max(1, w), f"total_steps must be at least {max(1, w)}, got {total}.")
        self.warmup_steps, self.total_steps = w, total
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step >= self.total_steps:
            return 0.0
        return (self.total_steps - step) / (self.total_steps - self.warmup_steps)


class WarmupInverseSqrt(_Schedule):
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
        w = _whole("warmup_steps", warmup_steps)
        _require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        self.warmup_steps = w
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        w = max(1, self.warmup_steps)
        return min((step + 1) / w, math.sqrt(w / (step + 1)))


class ExponentialTail(_Schedule):
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
        w, start = _whole("warmup_steps", warmup_steps), _whole("start", start)
        factor = _number("factor", factor)
        _require(w >= 0, f"warmup_steps must not be negative, got {w}.")
        _require(start >= w, f"start must not be before the end of warm-up at {w}, got {start}.")
        _require(1 <= factor < math.inf, f"factor must be finite and at least 1, got {factor}.")
        self.start, self.divisor, self.warmup_steps = start, factor, w
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        if step < self.start:
            return min(1.0, (step + 1) / max(1, self.warmup_steps))
        # A negative power ends at 0; one over a positive power would end in an OverflowError.
        return math.pow(self.divisor, self.start - step - 1)


class FlatThenDrop(_Schedule):
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
        drop_at, gamma = _whole("drop_at", drop_at), _number("gamma", gamma)
        _require(drop_at >= 0, f"drop_at must not be negative, got {drop_at}.")
        _require(0 < gamma <= 1, f"gamma must be above 0 and at most 1, got {gamma}.")
        self.drop_at, self.gamma = drop_at, gamma
        super().__init__(optimizer, groups, last_epoch)

    def factor(self, step: int) -> float:
        """Return what the base lrs are multiplied by at `step`."""
        return self.gamma if step >= self.drop_at else 1.0
