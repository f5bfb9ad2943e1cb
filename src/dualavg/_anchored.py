"""What every method of the dual averaging family has in common as a `torch.optim.Optimizer`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _use_grad_for_differentiable,
)

from dualavg import _kernels
from dualavg._kernels import Scalar

Group: TypeAlias = dict[str, Any]
StateDict: TypeAlias = dict[str, Any]

_HALF = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}

_DTYPES = {*_HALF, torch.float32, torch.float64, torch.complex64, torch.complex128}
_METHOD = {"weighting", "scaling"}  # settings that tell the methods of the family apart
_COUNTERS = {"step", "beta"}  # numbers that are read on the host, unless the step is capturable
_LARGEST = 1e15  # of lr and weight decay: their product with any k stays within float32


class AnchoredOptimizer(Optimizer, ABC):
    """State, step and checkpoints of an optimizer that keeps an anchor `x0` and a gradient sum `s`.

    A method of the family says in `_weights` which lambda_k and beta_k it takes; the rest is here.
    """

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        check_settings(defaults)
        super().__init__(params, _plain(defaults))

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        # A pickle or checkpoint of an older version may lack settings that came later.
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            peak = group.get("peak_lr", 0.0)
            if not isinstance(peak, Tensor):
                group["peak_lr"] = _new_peak(group["lr"]).fill_(peak)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters start at their own k = 0 and x0, whenever that is."""
        if not isinstance(param_group, dict):
            raise TypeError(f"A group must be a dict with 'params', got {type(param_group).__name__}.")
        self._check_group({**self.defaults, **param_group})
        super().add_param_group(_plain(param_group))
        self.param_groups[-1]["peak_lr"] = _new_peak(self.param_groups[-1]["lr"])

    def _check_group(self, group: Group) -> None:
        """Raise one sentence about what is wrong with the settings of a group, if anything is."""
        check_settings(group)

    @abstractmethod
    def _weights(
        self, group: Group, lr: Scalar, ks: list[Scalar], betas: list[Tensor]
    ) -> tuple[list[Scalar], list[Scalar]]:
        """lambda_k and beta_k for each parameter; `ks` holds k + 1."""

    def _state_keys(self, group: Group) -> set[str]:  # noqa: ARG002
        """What is kept for each parameter of a group."""
        return {"step", "x0", "s"}

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """State of a parameter before its first step."""
        anchor = p
        if group.get("anchor_dtype") is not None and p.dtype in (torch.float32, torch.float64):
            # A changed starting point, not a changed method: x0 is exact in two bytes.
            anchor = p.to(group["anchor_dtype"], memory_format=torch.preserve_format)
            p.copy_(anchor)
        device = p.device if group["capturable"] else torch.device("cpu")
        return {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            # Part of the graph under `differentiable`: x_{k+1} depends on x_0 through the anchor too.
            "x0": anchor.clone(memory_format=torch.preserve_format) if anchor is p else anchor,
            "s": torch.zeros_like(
                p,
                dtype=_HALF.get(p.dtype, p.dtype),
                memory_format=torch.preserve_format,
                requires_grad=False,
            ),
        }

    def _init_group(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        x0s: list[Tensor],
        sums: list[Tensor],
        steps: list[Tensor],
        betas: list[Tensor],
        averages: list[Tensor],
    ) -> None:
        """Collect what has a gradient, making its state where it is new.

        Dynamo knows this name: it runs it as it is while it traces a step, and wants the lists empty.
        """
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            state = self.state[p]
            if not state:
                state.update(self._new_state(p, group))
            params.append(p)
            grads.append(grad)
            x0s.append(state["x0"])
            sums.append(state["s"])
            steps.append(state["step"])
            if "beta" in state:
                betas.append(state["beta"])
            if "average" in state:
                averages.append(state["average"])

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: evaluates the model again and returns the loss; called with gradients enabled.
        """
        self._check_ready()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            self._check_before_step()

        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            x0s: list[Tensor] = []
            sums: list[Tensor] = []
            steps: list[Tensor] = []
            betas: list[Tensor] = []
            averages: list[Tensor] = []
            self._init_group(group, params, grads, x0s, sums, steps, betas, averages)
            if not params:
                continue
            lr, c = _lr_and_c(group)
            ks = _next_step_numbers(group, params, steps)
            self._average(params, averages, ks)
            lambdas, scales = self._weights(group, lr, ks, betas)
            _kernels.update(
                params,
                grads,
                x0s,
                sums,
                lambdas,
                scales,
                c=c,
                weight_decay=group["weight_decay"],
                maximize=group["maximize"],
                foreach=group["foreach"],
                fused=group["fused"],
                differentiable=group["differentiable"],
                has_sparse_grad=any(grad.is_sparse for grad in grads),
            )
        return loss

    def _average(self, params: list[Tensor], averages: list[Tensor], ks: list[Scalar]) -> None:
        """Take the x_k at which the gradients were taken into the averaged iterate, if one is kept."""

    def _check_ready(self) -> None:
        """Raise if this is no time for a step."""

    def _check_before_step(self) -> None:
        """Raise what can be raised before anything has changed.

        Not in a compiled step, which would have to wait for its own outcome; and a capturable one does not
        read a tensor lr.
        """
        for i, group in enumerate(self.param_groups):
            check_settings(group, read_tensors=not group["capturable"])
            if not isinstance(group["lr"], float | Tensor):
                group["lr"] = float(group["lr"])  # a scheduler's numpy number: torch.load would not take it
            keys = self._state_keys(group)
            for j, p in enumerate(group["params"]):
                grad = p.grad
                if grad is not None and (wrong := self._what_is_wrong_with(p, grad, keys)):
                    name = repr(group["param_names"][j]) if "param_names" in group else f"{j} of group {i}"
                    raise ValueError(f"Parameter {name} {wrong}")

    def _what_is_wrong_with(self, p: Tensor, grad: Tensor, keys: set[str]) -> str | None:
        shape = p.shape
        if grad.shape != shape:
            return f"has shape {tuple(shape)}, but its gradient has another one."
        state = self.state.get(p)
        if state:
            s = state["s"]
            if s.shape != shape or s.device != p.device:
                return (
                    f"was {tuple(s.shape)} on {s.device} at its last step and is {tuple(shape)} on "
                    f"{p.device} now: make a new optimizer after such a change, or call reset_anchor()."
                )
            if state.keys() != keys:
                return (
                    f"keeps {sorted(state)}, but its group's settings were changed and need {sorted(keys)}."
                )
        elif p.layout != torch.strided:
            return f"has layout {p.layout}, but must be dense; only its gradient may be sparse."
        elif p.dtype not in _DTYPES:
            return f"has dtype {p.dtype}, which MDA's arithmetic does not cover."
        return None

    @torch.no_grad()
    def reset_anchor(self) -> None:
        """Start the method anew at the current parameters: x0 = x, s = 0, k = 0.

        For those who load weights into the model after the optimizer already has state, as
        `torch.distributed.checkpoint` does: it fills an optimizer's state by a step of its own, and the
        anchor would stay at the weights of that moment. Also the right call after any other jump of the
        parameters that the optimizer did not make.
        """
        self._check_ready()
        for group in self.param_groups:
            group["peak_lr"].zero_()
            for p in group["params"]:
                state = self.state.get(p)
                if not state:
                    continue
                fresh = self._new_state(p, group)
                alike = state.keys() == fresh.keys() and all(
                    (v.shape, v.dtype, v.device) == (fresh[k].shape, fresh[k].dtype, fresh[k].device)
                    for k, v in state.items()
                )
                # In place where it can be: a captured graph goes on using the same memory.
                self.state[p] = {k: v.copy_(fresh[k]) for k, v in state.items()} if alike else fresh

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict, each tensor in the dtype it was saved in.

        `torch.optim` casts state to the parameter's dtype, which would round `s` away when the parameters
        are in half precision. Nothing loaded shares memory with `state_dict`. A state dict that is not one of
        this method's is refused before anything is changed.
        """
        saved: dict[Tensor, dict[str, Tensor]] = {}

        # Between the user's own hooks: after those that may rewrite the state dict, before those that read.
        def remember(_: Optimizer, final: StateDict) -> None:
            saved.update(self._checked_state(final))

        def restore(_: Optimizer) -> None:
            for p, state in saved.items():
                self.state[p] = state

        before = self.register_load_state_dict_pre_hook(remember)
        after = self.register_load_state_dict_post_hook(restore, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _checked_state(self, state_dict: StateDict) -> dict[Tensor, dict[str, Tensor]]:
        """The state to be loaded for each parameter, on its device and in its own dtype."""
        what = f"This is not a state dict of {type(self).__name__}: "
        if not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError(f"{what}it holds {sorted(map(str, state_dict))}.")
        checked: dict[Tensor, dict[str, Tensor]] = {}
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
            if "couple_momentum" not in saved or saved.keys() & _METHOD != self.defaults.keys() & _METHOD:
                raise ValueError(f"{what}its groups have the settings {sorted(map(str, saved))}.")
            settings = {**self.defaults, **saved}
            self._check_group(settings)
            keys = self._state_keys(settings)
            for p, i in zip(group["params"], saved["params"], strict=False):
                state = state_dict["state"].get(i)
                if not state:
                    continue
                if state.keys() != keys:
                    raise ValueError(
                        f"{what}the state of parameter {i} holds {sorted(map(str, state))}, "
                        f"but {sorted(keys)} are needed."
                    )
                for key, value in state.items():
                    _check_saved(key, value, p, i)
                checked[p] = {
                    key: value.clone().to(
                        "cpu" if key in _COUNTERS and not settings["capturable"] else p.device
                    )
                    for key, value in state.items()
                }
        return checked


def _check_saved(key: str, value: object, p: Tensor, i: object) -> None:
    """Raise one sentence if a saved tensor cannot be the state of a parameter."""
    where = f"{key!r} of parameter {i}"
    if not isinstance(value, Tensor):
        raise ValueError(f"{where} must be a tensor, got {type(value).__name__}.")  # noqa: TRY004
    if key in _COUNTERS:
        if value.numel() != 1 or not 0 <= value.item() < math.inf or (key == "beta" and value.item() < 1):
            raise ValueError(f"{where} must be a step count, got {value.tolist()}.")
        return
    if value.shape != p.shape:
        raise ValueError(
            f"{where} was saved for shape {tuple(value.shape)}, but the parameter has shape {tuple(p.shape)}."
        )
    if value.layout != torch.strided or value.dtype not in _DTYPES or value.is_complex() != p.is_complex():
        raise ValueError(
            f"{where} is {value.dtype}, {value.layout}, which does not fit a {p.dtype} parameter."
        )


def _lr_and_c(group: Group) -> tuple[Scalar, Scalar]:
    """eta_k, and c_{k+1} = min(1, c peak_lr / eta_k) with peak_lr the largest eta so far."""
    lr, c, peak = group["lr"], 1 - group["momentum"], group["peak_lr"]
    if torch.compiler.is_compiling() and not isinstance(lr, Tensor):
        # Dynamo guards on the outcome of min and max of floats: as a tensor, a moving lr recompiles nothing.
        lr = torch.zeros((), dtype=torch.float64) + lr
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
    elif lr > peak.item():
        peak.fill_(lr)
    if group["couple_momentum"]:
        c = min(1.0, c * peak.item() / lr) if lr > 0 else 1.0
    return lr, c


def _new_peak(lr: Scalar) -> Tensor:
    """peak_lr before the first step: a tensor, so that a compiled step can raise it.

    One element, not 0-dim: torch 2.13 compiles an in-place change of a 0-dim float64 graph input away.
    """
    if isinstance(lr, Tensor):
        return torch.zeros(1, dtype=lr.dtype, device=lr.device)
    return torch.zeros(1, dtype=torch.float64)


def _next_step_numbers(group: Group, params: list[Tensor], steps: list[Tensor]) -> list[Scalar]:
    """Count the step; k + 1 for each parameter: floats, or tensors that are precise enough for it."""
    if not _on_device(group):
        ks: list[Scalar] = []
        for step in steps:  # each of them its own k; a multi-tensor add of numbers takes longer
            k = step.item() + 1
            step.fill_(k)
            ks.append(k)
        return ks
    torch._foreach_add_(steps, 1)
    return [
        step.double() if p.dtype in (torch.float64, torch.complex128) else step
        for p, step in zip(params, steps, strict=True)
    ]


def _on_device(group: Group) -> bool:
    """Whether numbers must stay tensors: the step is traced, or may not wait for the device."""
    return group["capturable"] or torch.compiler.is_compiling()


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


def _plain(settings: Group) -> Group:
    """Numbers of any kind as Python floats, which any checkpoint can hold."""
    numbers = {"lr", "momentum", "weight_decay"}
    return {
        key: float(value) if key in numbers and isinstance(value, Real) else value
        for key, value in settings.items()
    }
