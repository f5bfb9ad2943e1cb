"""Bad input gets one clear sentence: settings of a group, tensors of a step or of a checkpoint."""

import math
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

Group: TypeAlias = dict[str, Any]

HALF = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
DTYPES = {*HALF, torch.float32, torch.float64, torch.complex64, torch.complex128}
COUNTERS = {"step", "beta"}  # numbers that are read on the host, unless the step is capturable
_LARGEST = 1e15  # of lr and weight decay: their product with any k stays within float32


def check_settings(group: Group, *, read_tensors: bool = True) -> None:
    """Raise one sentence about what is wrong, if anything is. Reading a tensor may wait for a device."""
    lr, momentum, weight_decay = group["lr"], group["momentum"], group["weight_decay"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1 or not lr.is_floating_point():
            raise ValueError(
                f"A tensor lr must be one floating-point number, got {lr.dtype} of shape {tuple(lr.shape)}."
            )
        lr = lr.item() if read_tensors else 0.0
    if not _is_between(lr, 0, _LARGEST):
        raise ValueError(f"lr must be a number from 0 to {_LARGEST:g}, got {lr!r}.")
    if not _is_between(momentum, 0, 1):
        raise ValueError(f"momentum must be a number in [0, 1) (0.9 as in SGD, not 0.1), got {momentum!r}.")
    if not _is_between(weight_decay, 0, _LARGEST):
        raise ValueError(f"weight_decay must be a number from 0 to {_LARGEST:g}, got {weight_decay!r}.")
    _check_path(group)


def _check_path(group: Group) -> None:
    """Raise if settings exclude each other."""
    for path in ("foreach", "fused"):
        if group[path] and group["differentiable"]:
            raise ValueError(f"{path}=True cannot be differentiated through: leave {path}=None.")
    if group["foreach"] and group["fused"]:
        raise ValueError("foreach and fused are two paths: ask for one of them.")
    if group.get("anchor_dtype") not in (None, torch.bfloat16):
        raise ValueError(f"anchor_dtype must be None or torch.bfloat16, got {group['anchor_dtype']!r}.")
    if group.get("anchor_dtype") is not None and group["differentiable"]:
        raise ValueError("anchor_dtype rounds parameters, which cannot be differentiated through.")


def _is_between(x: object, low: float, high: float) -> bool:
    if type(x) is float:
        return low <= x < high
    try:
        return isinstance(x, Real) and low <= float(x) < high
    except OverflowError:
        return False


def plain(settings: Group) -> Group:
    """Numbers of any kind as Python floats, which any checkpoint can hold."""
    numbers = {"lr", "momentum", "weight_decay"}
    return {
        key: float(value) if key in numbers and isinstance(value, Real) else value
        for key, value in settings.items()
    }


def check_saved(key: str, value: object, p: Tensor, i: object) -> None:
    """Raise one sentence if a saved tensor cannot be the state of a parameter."""
    where = f"{key!r} of parameter {i}"
    if not isinstance(value, Tensor):
        raise ValueError(f"{where} must be a tensor, got {type(value).__name__}.")  # noqa: TRY004
    if key in COUNTERS:
        if value.numel() != 1 or not 0 <= value.item() < math.inf or (key == "beta" and value.item() < 1):
            raise ValueError(f"{where} must be a step count, got {value.tolist()}.")
        return
    if value.shape != p.shape:
        raise ValueError(
            f"{where} was saved for shape {tuple(value.shape)}, but the parameter has shape {tuple(p.shape)}."
        )
    if value.layout != torch.strided or value.dtype not in DTYPES or value.is_complex() != p.is_complex():
        raise ValueError(
            f"{where} is {value.dtype}, {value.layout}, which does not fit a {p.dtype} parameter."
        )


def what_is_wrong_with_new(p: Tensor, grad: Tensor) -> str:
    """Say why a parameter cannot take its first step; nothing if it can."""
    if grad.shape != p.shape:
        return f"has shape {tuple(p.shape)}, but its gradient has another one."
    if p.layout != torch.strided:
        return f"has layout {p.layout}, but must be dense; only its gradient may be sparse."
    if p.dtype not in DTYPES:
        return f"has dtype {p.dtype}, which MDA's arithmetic does not cover."
    if p.is_inference() and not torch.is_inference_mode_enabled():
        return "was made in torch.inference_mode(), and cannot be changed outside of it."
    return ""


def what_is_wrong_with(p: Tensor, grad: Tensor, state: dict[str, Tensor], keys: set[str]) -> str:
    """Say why a parameter and its state do not fit, which they do not."""
    if not isinstance(state, dict):
        return f"keeps an object of {type(state)} where its state was."
    if state.keys() != keys:
        return f"keeps {sorted(map(str, state))}, but its group's settings need {sorted(keys)}."
    for key, value in state.items():
        if not isinstance(value, Tensor):
            return f"keeps a {key!r} that must be a tensor and is of {type(value)}."
    if grad.shape != p.shape:
        return f"has shape {tuple(p.shape)}, but its gradient has another one."
    s = next(t for t in (state["s"], state["x0"]) if t.shape != p.shape or t.device != p.device)
    return (
        f"was {tuple(s.shape)} on {s.device} at its last step and is {tuple(p.shape)} on {p.device} now: "
        "make a new optimizer after such a change, or call reset_anchor()."
    )
