"""The numbers of a step: lr, c, and each parameter's k, on the host or as tensors."""

from ctypes import c_float

import torch
from torch import Tensor

from dualavg._checks import Group
from dualavg._kernels import Scalar


def lr_and_c(group: Group) -> tuple[Scalar, Scalar]:
    """eta_k, and c_{k+1} = min(1, c peak_lr / eta_k) with peak_lr the largest eta so far."""
    lr, c, peak = group["lr"], 1 - group["momentum"], group["peak_lr"]
    if torch.compiler.is_compiling() and not isinstance(lr, Tensor):
        # Dynamo guards on the outcome of min and max of floats: as a tensor, a moving lr recompiles nothing.
        lr = torch.zeros((), dtype=torch.float64, device="cpu") + lr
    if isinstance(lr, Tensor):
        lr = lr.squeeze()
        if group["differentiable"]:
            peak = group["peak_lr"] = torch.maximum(peak, lr)  # c depends on lr through it
        else:
            peak.clamp_(min=lr.detach())
        if _on_device(group) or group["differentiable"]:
            if group["couple_momentum"]:
                # lr = 0 gives c = 1 without dividing by zero, in the derivative too.
                ratio = c * peak.squeeze() / torch.where(lr > 0, lr, 1.0)
                c = torch.where(lr > 0, ratio.clamp(max=1.0), 1.0)
            return lr, c
        lr = lr.item()
    highest = peak.item()
    if lr > highest:
        highest = lr
        peak.fill_(lr)
    if group["couple_momentum"]:
        c = min(1.0, c * highest / lr) if lr > 0 else 1.0
    return lr, c


def new_peak(lr: Scalar) -> Tensor:
    """peak_lr before the first step: a tensor, so that a compiled step can raise it.

    One element, not 0-dim: torch 2.13 compiles an in-place change of a 0-dim float64 graph input away.
    """
    if isinstance(lr, Tensor):
        return torch.zeros(1, dtype=lr.dtype, device=lr.device)
    return torch.zeros(1, dtype=torch.float64, device="cpu")  # wherever torch makes tensors by default


def next_step_numbers(group: Group, params: list[Tensor], steps: list[Tensor]) -> list[Scalar]:
    """Count the step; k + 1 for each parameter: floats, or tensors that are precise enough for it."""
    if not _on_device(group):
        return [_count(step) for step in steps]
    torch._foreach_add_(steps, 1)
    return [
        step.double() if p.dtype in (torch.float64, torch.complex128) else step
        for p, step in zip(params, steps, strict=True)
    ]


def _count(step: Tensor) -> float:
    """Add one to a number in memory, and return it: a tenth of the time that two operators take."""
    if type(step) is Tensor and step.dtype is torch.float32 and step.is_cpu and (address := step.data_ptr()):
        number = c_float.from_address(address)
        number.value += 1
        return number.value
    k = step.item() + 1
    step.fill_(k)
    return k


def _on_device(group: Group) -> bool:
    """Whether numbers must stay tensors: the step is traced, or may not wait for the device."""
    return group["capturable"] or torch.compiler.is_compiling()
