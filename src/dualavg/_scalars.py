"""The numbers of a step: lr, c and k, as Python floats or as tensors."""

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dualavg._validation import Group

Scalar: TypeAlias = float | Tensor
Weights: TypeAlias = tuple[list[Scalar], list[Scalar]]  # lambda_k and beta_k of each parameter

_ONE = torch.ones((), device="cpu")


def lr_and_c(group: Group) -> tuple[Scalar, Scalar]:
    """eta_k, and c_{k+1} = min(1, c peak_lr / eta_k) with peak_lr the largest eta so far."""
    lr, c, peak = group["lr"], 1 - group["momentum"], group["peak_lr"]
    if torch.compiler.is_compiling() and not isinstance(lr, Tensor):
        # Dynamo guards on the result of min and max of floats: with a tensor, a new lr recompiles nothing.
        lr = torch.zeros((), dtype=torch.float64, device="cpu") + lr
    if isinstance(lr, Tensor):
        lr = lr.squeeze()
        if group["differentiable"]:
            peak = group["peak_lr"] = torch.maximum(peak, lr)  # c depends on lr through it
        else:
            peak.clamp_(min=lr.detach())
        if keeps_tensors(group) or group["differentiable"]:
            if group["couple_momentum"]:
                # lr = 0 gives c = 1 without a division by zero, in the derivative too.
                ratio = c * peak.squeeze() / torch.where(lr > 0, lr, 1.0)
                c = torch.where(lr > 0, ratio.clamp(max=1.0), 1.0)
            return lr, c
        lr = lr.item()
    peak_lr = peak.item()
    if lr > peak_lr:
        peak_lr = lr
        peak.fill_(lr)
    if group["couple_momentum"]:
        c = min(1.0, c * peak_lr / lr) if lr > 0 else 1.0
    return lr, c


def new_peak(lr: Scalar) -> Tensor:
    """Create peak_lr for a new group: a tensor, so that a compiled step can update it."""
    # Not 0-dim: torch 2.13 drops in-place updates of 0-dim float64 graph inputs.
    if isinstance(lr, Tensor):
        return torch.zeros(1, dtype=lr.dtype, device=lr.device)
    return torch.zeros(1, dtype=torch.float64, device="cpu")


def step_numbers(group: Group, params: list[Tensor], steps: list[Tensor]) -> list[Scalar]:
    """Return k + 1 for each parameter."""
    if not keeps_tensors(group):
        return [step.item() + 1 for step in steps]
    return [
        (step.double() if p.dtype in (torch.float64, torch.complex128) else step) + 1
        for p, step in zip(params, steps, strict=True)
    ]


def count_steps(steps: list[Tensor]) -> None:
    """Add one to every step count."""
    if steps[0].is_cpu and not torch.compiler.is_compiling():
        # As in torch.optim: a number would be wrapped in a tensor for every step count.
        torch._foreach_add_(steps, _ONE, alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)


def square_roots(ks: list[Scalar]) -> list[Scalar]:
    """sqrt(k+1) for each parameter, given k + 1."""
    return [k.sqrt() for k in ks] if isinstance(ks[0], Tensor) else list(map(math.sqrt, ks))  # type: ignore[union-attr]


def where(condition: Any, a: Scalar, b: Scalar) -> Any:
    """Return `a` if the condition holds, otherwise `b`."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def larger(a: Scalar, b: Scalar) -> Any:
    """Return the larger number; `a` if `b` is not a number."""
    return where(b > a, b, a)


def square_root(number: Scalar) -> Any:
    """Return the square root of a number >= 0."""
    return number.sqrt() if isinstance(number, Tensor) else math.sqrt(number)


def keeps_tensors(group: Group) -> bool:
    """Whether numbers must stay tensors: the step is compiled, or must not wait for the device."""
    return bool(group["capturable"]) or torch.compiler.is_compiling()
