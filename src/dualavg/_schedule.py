"""The torch plumbing of a schedule, and the checks of its settings."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, _warn_get_lr_called_within_step


def require(condition: bool, sentence: str) -> None:
    """Raise ValueError with the sentence if the condition is false."""
    if not condition:
        raise ValueError(sentence)


def whole(name: str, value: object) -> int:
    """Return a setting as an int; raise ValueError if it is no whole number."""
    require(isinstance(value, Integral), f"{name} must be a whole number, got {value!r}.")
    return int(cast(int, value))


def number(name: str, value: object) -> float:
    """Return a setting as a float; raise ValueError if it is no number."""
    require(isinstance(value, Real), f"{name} must be a number, got {value!r}.")
    return float(cast(float, value))


def _copy(lr: float | Tensor) -> float | Tensor:
    return lr.clone() if isinstance(lr, Tensor) else lr


def _is_spent(group: dict[str, Any]) -> bool:
    """Whether a schedule has ended at 0; a tensor lr is not asked, which would wait for its device."""
    lr, first = group["lr"], group.get("initial_lr", 0.0)
    return not isinstance(lr, Tensor) and lr == 0 and first != 0


class Schedule(LRScheduler, ABC):
    """The torch plumbing; a subclass holds its settings and `factor`."""

    def __init__(self, optimizer: Optimizer, groups: Sequence[int] | None, last_epoch: int) -> None:
        if groups is not None:
            last = len(optimizer.param_groups) - 1
            listed = isinstance(groups, Sequence) and not isinstance(groups, str)
            require(listed, f"groups must be a list of indices of param groups, got {groups!r}.")
            groups = [whole("An index in groups", i) for i in groups]
            known = all(0 <= i <= last for i in groups)
            require(known, f"groups must be among the optimizer's 0 to {last}, got {groups}.")
        self.groups = groups
        moved = (group for i, group in enumerate(optimizer.param_groups) if self._moves(i))
        if last_epoch == -1 and any(map(_is_spent, moved)):
            warnings.warn(
                "lr is 0 where an earlier schedule ended, and 0 times any factor is 0: set the lr of each of "
                "optimizer.param_groups before making a new schedule.",
                stacklevel=3,
            )
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
