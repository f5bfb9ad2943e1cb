"""What the optimizers of the family share as `torch.optim.Optimizer`: state, step and checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from dualavg._fused import Columns
from dualavg._scalars import Scalar, Weights, lr_and_c, new_peak, step_numbers
from dualavg._update import update
from dualavg._validation import (
    COUNTERS,
    SUM_DTYPES,
    Group,
    as_dtype,
    first_step_problem,
    plain_setting,
    state_mismatch,
    validate_saved,
    validate_settings,
)

StateDict: TypeAlias = dict[str, Any]

_UPDATE_SETTINGS = ("weight_decay", "maximize", "foreach", "fused", "differentiable")
_METHOD = {"weighting", "scaling", "d0"}  # settings that distinguish the methods of the family


class Updated(NamedTuple):
    """A group that took a step: the columns of `update`, and the s of parameters without a gradient."""

    group: Group
    columns: Columns
    idle_sums: list[Tensor]


class AnchoredOptimizer(Optimizer, ABC):
    """An optimizer that keeps an anchor `x0` and a sum of gradients `s` for each parameter.

    A subclass defines lambda_k and beta_k in `_weights`.
    """

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        validate_settings(defaults)
        super().__init__(params, defaults)

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        # A pickle or checkpoint of an older version may lack newer settings.
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            peak = group.get("peak_lr", 0.0)
            if not isinstance(peak, Tensor):
                group["peak_lr"] = new_peak(group["lr"]).fill_(peak)
            if "anchor_dtype" in group:
                group["anchor_dtype"] = as_dtype(group["anchor_dtype"])

    def add_param_group(self, param_group: Group) -> None:
        """Add a group. Its parameters start their own k = 0 and x0 at their first step."""
        if not isinstance(param_group, dict):
            raise TypeError(f"A group must be a dict with 'params', got {type(param_group).__name__}.")
        group = {**self.defaults, **param_group}
        self._validate_settings(group)
        super().add_param_group(group)
        self.param_groups[-1]["peak_lr"] = new_peak(self.param_groups[-1]["lr"])

    def _validate_settings(self, group: Group) -> None:
        validate_settings(group)

    @abstractmethod
    def _weights(self, group: Group, lr: Scalar, ks: list[Scalar], betas: list[Tensor]) -> Weights:
        """Compute lambda_k and beta_k for each parameter; `ks` holds k + 1."""

    def _state_keys(self, group: Group) -> set[str]:  # noqa: ARG002
        """Name the state of each parameter of a group."""
        return {"step", "x0", "s"}

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """Create the state of a parameter before its first step."""
        device = p.device if group["capturable"] else torch.device("cpu")
        return {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            # Under `differentiable` part of the graph: x_{k+1} depends on x_0 through the anchor too.
            "x0": p.clone(memory_format=torch.preserve_format),
            "s": torch.zeros_like(p, dtype=SUM_DTYPES.get(p.dtype, p.dtype), requires_grad=False),
        }

    def _init_group(self, group: Group, *lists: list[Tensor]) -> None:
        """Collect the tensors of parameters that have a gradient; create state where there is none.

        `idle_sums` gets the s of parameters that have state, but no gradient.
        """
        # Dynamo special-cases this name: it runs the method instead of tracing it, and requires empty lists.
        params, grads, x0s, sums, steps, betas, averages, idle_sums = lists
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                if state := self.state.get(p):
                    idle_sums.append(state["s"])
                continue
            state = self.state[p]
            if not state:
                state.update(self._new_state(p, group))
                if group.get("anchor_dtype") is not None:
                    _shrink_anchor(p, state, group)
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
        if not torch.compiler.is_compiling():  # a compiled graph cannot stop to look at tensors
            for i, group in enumerate(self.param_groups):
                self._validate_group(i, group)  # nothing has changed if this raises

        gathered: list[Any] = [([], [], [], [], [], [], [], []) for _ in self.param_groups]
        for group, lists in zip(self.param_groups, gathered, strict=True):
            self._init_group(group, *lists)
        self._prepare(gathered)
        updated = []
        for group, lists in zip(self.param_groups, gathered, strict=True):
            params, grads, x0s, sums, steps, betas, averages, idle_sums = lists
            if not params:
                updated.append(Updated(group, ([],) * 9, idle_sums))
                continue
            lr, c = lr_and_c(group)
            ks = step_numbers(group, params, steps)
            self._average(params, averages, ks)
            lambdas, scales = self._weights(group, lr, ks, betas)
            products = self._new_products(len(params))
            columns = (params, grads, x0s, sums, steps, lambdas, scales, ks, products)
            update(columns, c=c, **{key: group[key] for key in _UPDATE_SETTINGS})
            updated.append(Updated(group, columns, idle_sums))
        self._observe(updated)
        return loss

    def _check_ready(self) -> None:
        """Raise RuntimeError if no step can be taken now."""

    def _average(self, params: list[Tensor], averages: list[Tensor], ks: list[Scalar]) -> None:
        """Add x_k, where the gradients were computed, to the averaged iterates."""

    def _prepare(self, gathered: list[Any]) -> None:
        """Look at the lists of all groups before the first is updated."""

    def _new_products(self, count: int) -> list[list[Scalar] | None]:
        """Create what `update` fills with the inner products of each parameter, or Nones."""
        return [None] * count

    def _observe(self, updated: list[Updated]) -> None:
        """Learn from the step just taken."""

    def _validate_group(self, i: int, group: Group) -> None:
        """Raise ValueError if settings, gradients or state of a group are invalid."""
        validate_settings(group, read_tensors=not group["capturable"])  # reading waits for the device
        keys = self._state_keys(group)
        for j, p in enumerate(group["params"]):
            grad = p.grad
            if grad is None:
                continue
            state = self.state.get(p)
            problem = state_mismatch(p, grad, state, keys) if state else first_step_problem(p, grad)
            if problem:
                name = repr(group["param_names"][j]) if "param_names" in group else f"{j} of group {i}"
                raise ValueError(f"Parameter {name} {problem}")

    @torch.no_grad()
    def reset_anchor(self) -> None:
        """Restart the method at the current parameters: x0 = x, s = 0, k = 0.

        Call it after loading weights into the model if the optimizer already has state. This happens with
        `torch.distributed.checkpoint`: it creates the optimizer's state by a step of its own, and the anchor
        would stay at the weights of that moment. Call it too after any other change of the parameters that
        the optimizer did not make. The parameters keep their values; with `anchor_dtype`, x0 is in float32.
        """
        self._check_ready()
        for group in self.param_groups:
            group["peak_lr"].zero_()
            for p in group["params"]:
                state = self.state.get(p)
                if not state:
                    continue
                fresh = self._new_state(p, group)
                same = state.keys() == fresh.keys() and all(
                    (v.shape, v.dtype, v.device) == (fresh[k].shape, fresh[k].dtype, fresh[k].device)
                    for k, v in state.items()
                )
                # In place if possible: a captured CUDA graph keeps using the same memory.
                self.state[p] = {k: v.copy_(fresh[k]) for k, v in state.items()} if same else fresh

    def state_dict(self) -> StateDict:
        """Return the state of each parameter, which is tensors, and the settings of each group.

        The settings can be written as JSON, except for a tensor `lr`: `peak_lr` is a float, `anchor_dtype` a
        string, and a number of numpy's, which a scheduler may have set, is one of Python's.
        """

        # Before the user's hooks, which may change or replace the state dict.
        def convert(_: Optimizer, final: StateDict) -> None:
            for group in final["param_groups"]:
                group.update({key: plain_setting(key, value) for key, value in group.items()})

        hook = self.register_state_dict_post_hook(convert, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict, each tensor in the dtype it was saved in.

        `torch.optim` casts state to the parameter's dtype, which would lose the precision of `s` for
        parameters in half precision. The loaded state shares no memory with `state_dict`. The state dict of
        another optimizer raises ValueError before anything has changed.
        """
        saved: dict[Tensor, dict[str, Tensor]] = {}

        # After the user's hooks that may change the state dict, before those that read the result.
        def validate(_: Optimizer, final: StateDict) -> None:
            saved.update(self._validated_state(final))

        def restore(_: Optimizer) -> None:
            for p, state in saved.items():
                self.state[p] = state

        before = self.register_load_state_dict_pre_hook(validate)
        after = self.register_load_state_dict_post_hook(restore, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _validated_state(self, state_dict: StateDict) -> dict[Tensor, dict[str, Tensor]]:
        """Return a copy of the saved state for each parameter, on its device."""
        error = f"This is not a state dict of {type(self).__name__}: "
        if not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError(f"{error}it holds {sorted(map(str, state_dict))}.")
        states: dict[Tensor, dict[str, Tensor]] = {}
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
            if "couple_momentum" not in saved or saved.keys() & _METHOD != self.defaults.keys() & _METHOD:
                raise ValueError(f"{error}its groups have the settings {sorted(map(str, saved))}.")
            settings = {**self.defaults, **saved}
            self._validate_settings(settings)
            keys = self._state_keys(settings)
            for p, i in zip(group["params"], saved["params"], strict=False):
                state = state_dict["state"].get(i)
                if not state:
                    continue
                if state.keys() != keys:
                    found = sorted(map(str, state))
                    raise ValueError(
                        f"{error}the state of parameter {i} holds {found}, but {sorted(keys)} are needed."
                    )
                states[p] = {}
                for key, value in state.items():
                    validate_saved(key, value, p, i)
                    device = "cpu" if key in COUNTERS and not settings["capturable"] else p.device
                    states[p][key] = value.clone().to(device)
        return states


@torch.no_grad()
def _shrink_anchor(p: Tensor, state: dict[str, Tensor], group: Group) -> None:
    """Keep x0 in `anchor_dtype` without loss, by rounding the parameter before its first step.

    At lr = 0 a step must not change a parameter: `torch.distributed.checkpoint` takes such a step on weights
    just loaded. The anchor stays in float32 then, and also if rounding would overflow.
    """
    if p.dtype != torch.float32 or not float(group["lr"]) > 0:
        return
    x0 = p.to(group["anchor_dtype"])
    if torch.equal(x0.isfinite(), p.isfinite()):
        p.copy_(x0)
        state["x0"] = x0
