"""Validation of settings, gradients and state; each error is one clear sentence."""

import math
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

Group: TypeAlias = dict[str, Any]

# The dtype of s for parameters in half precision; others keep their own.
SUM_DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
DTYPES = {*SUM_DTYPES, torch.float32, torch.float64, torch.complex64, torch.complex128}
COUNTERS = {"step", "beta"}  # state that is one number, kept on the CPU unless the group is capturable
_LARGEST = 1e15  # of lr and weight_decay: their product with any k stays within float32
_LIMITS = {"lr": _LARGEST, "momentum": 1.0, "weight_decay": _LARGEST}


def validate_settings(group: Group, *, read_tensors: bool = True) -> None:
    """Raise ValueError if a setting is invalid; convert numbers, such as numpy's, to floats in place.

    Reading a tensor lr may wait for its device.
    """
    for key, limit in _LIMITS.items():
        value = group[key]
        if type(value) is not float or not 0 <= value < limit:  # the usual case needs no more than this
            group[key] = _validated_number(key, value, limit, read_tensors=read_tensors)
    for kernel in ("foreach", "fused"):
        if group[kernel] and group["differentiable"]:
            raise ValueError(f"{kernel}=True is not differentiable: leave {kernel}=None.")
    if group["foreach"] and group["fused"]:
        raise ValueError("foreach=True and fused=True exclude each other: set one of them.")
    anchor_dtype = as_dtype(group.get("anchor_dtype"))
    if anchor_dtype not in (None, torch.bfloat16):
        raise ValueError(f"anchor_dtype must be None or torch.bfloat16, got {anchor_dtype!r}.")
    if anchor_dtype is not None:
        if group["differentiable"]:
            raise ValueError("anchor_dtype rounds parameters, which is not differentiable: leave it None.")
        group["anchor_dtype"] = anchor_dtype


def as_dtype(setting: Any) -> Any:
    """Return the dtype that "bfloat16" stands for, in checkpoints and configuration files; others as is."""
    return torch.bfloat16 if setting == "bfloat16" else setting


def plain_setting(key: str, value: Any) -> Any:
    """Return a setting of a group as a checkpoint holds it: a value of Python's, or a tensor lr."""
    if isinstance(value, Tensor):
        return value if key == "lr" else value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    is_numpy_scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy_scalar else value


def _validated_number(key: str, setting: Any, limit: float, *, read_tensors: bool) -> float | Tensor:
    number = setting
    if key == "lr" and isinstance(setting, Tensor):
        if setting.numel() != 1 or not setting.is_floating_point():
            size = f"{setting.dtype} of shape {tuple(setting.shape)}"
            raise ValueError(f"A tensor lr must be one floating-point number, got {size}.")
        number = setting.item() if read_tensors else 0.0
    try:
        valid = isinstance(number, Real) and 0 <= float(number) < limit
    except OverflowError:
        valid = False
    if not valid:
        interval = "from 0 to below 1 (0.9 is usual)" if key == "momentum" else f"from 0 to {limit:g}"
        raise ValueError(f"{key} must be a number {interval}, got {number!r}.")
    return setting if isinstance(setting, Tensor) else float(number)


def first_step_problem(p: Tensor, grad: Tensor) -> str | None:
    """Describe why a parameter cannot take its first step."""
    if grad.shape != p.shape:
        return f"has shape {tuple(p.shape)}, but its gradient has shape {tuple(grad.shape)}."
    if p.layout != torch.strided:
        return f"has layout {p.layout}, but must be dense; only its gradient may be sparse."
    if p.dtype not in DTYPES:
        return f"has dtype {p.dtype}, which is not supported."
    if p.is_inference() and not torch.is_inference_mode_enabled():
        return "was created in torch.inference_mode() and cannot be changed outside of it."
    return None


def state_mismatch(p: Tensor, grad: Tensor, state: Any, keys: set[str]) -> str | None:
    """Describe the mismatch between a parameter, its gradient and its state."""
    try:  # the usual case first: this runs for every parameter at every step
        x0, s = state["x0"], state["s"]
        if (
            p.shape == grad.shape == s.shape == x0.shape
            and ((p.is_cpu and s.is_cpu and x0.is_cpu) or p.device == s.device == x0.device)
            and isinstance(state["step"], Tensor)
            and state.keys() == keys
        ):
            return None
    except (AttributeError, KeyError, TypeError):
        pass
    if not isinstance(state, dict):
        return f"has {type(state)} as its state, which must be a dict."
    if state.keys() != keys:
        return f"has the state {sorted(map(str, state))}, but its group's settings need {sorted(keys)}."
    for key, value in state.items():
        if not isinstance(value, Tensor):
            return f"has {type(value)} as its state {key!r}, which must be a tensor."
    for old in (state["s"], state["x0"]):
        if old.shape != p.shape or old.device != p.device:
            return (
                f"was {tuple(old.shape)} on {old.device} at its last step and is {tuple(p.shape)} on "
                f"{p.device} now: create a new optimizer after such a change, or call reset_anchor()."
            )
    return first_step_problem(p, grad)


def validate_saved(key: str, value: object, p: Tensor, i: object) -> None:
    """Raise ValueError if a saved tensor cannot be the state of parameter `p`, the i-th of the checkpoint."""
    name = f"{key!r} of parameter {i}"
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}.")  # noqa: TRY004
    shape = tuple(value.shape)
    if key in COUNTERS:
        if value.numel() != 1 or not 0 <= value.item() < math.inf or (key == "beta" and value.item() < 1):
            raise ValueError(f"{name} must be a step count, got {value.tolist()}.")
        return
    if shape != p.shape:
        raise ValueError(f"{name} was saved for shape {shape}, but the parameter has shape {tuple(p.shape)}.")
    if value.layout != torch.strided or value.dtype not in DTYPES or value.is_complex() != p.is_complex():
        raise ValueError(
            f"{name} is {value.dtype}, {value.layout}, which does not fit a {p.dtype} parameter."
        )
