"""What every method of the dual averaging family has in common as a `torch.optim.Optimizer`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _use_grad_for_differentiable,
)

from dualavg import _kernels
from dualavg._checks import (
    COUNTERS,
    HALF,
    Group,
    check_saved,
    check_settings,
    plain,
    what_is_wrong_with,
    what_is_wrong_with_new,
)
from dualavg._fused import KEPT, Prepared, prepare
from dualavg._kernels import Scalar
from dualavg._numbers import lr_and_c, new_peak, next_step_numbers

StateDict: TypeAlias = dict[str, Any]

_METHOD = {"weighting", "scaling"}  # settings that tell the methods of the family apart


class AnchoredOptimizer(Optimizer, ABC):
    """State, step and checkpoints of an optimizer that keeps an anchor `x0` and a gradient sum `s`.

    A method of the family says in `_weights` which lambda_k and beta_k it takes; the rest is here.
    """

    # What is known of `anchor_dtype`, and found out again after a copy or a load: whether some parameter may
    # still have to be rounded, and those (by id) that have not.
    _unsure = True
    _settled: frozenset[int] = frozenset()

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        check_settings(defaults)
        super().__init__(params, plain(defaults))

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        # A pickle or checkpoint of an older version may lack settings that came later.
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            peak = group.get("peak_lr", 0.0)
            if not isinstance(peak, Tensor):
                group["peak_lr"] = new_peak(group["lr"]).fill_(peak)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters start at their own k = 0 and x0, whenever that is."""
        if not isinstance(param_group, dict):
            raise TypeError(f"A group must be a dict with 'params', got {type(param_group).__name__}.")
        self._check_group({**self.defaults, **param_group})
        super().add_param_group(plain(param_group))
        self.param_groups[-1]["peak_lr"] = new_peak(self.param_groups[-1]["lr"])

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
        if group.get("anchor_dtype") is not None and p.dtype == torch.float32:
            low = p.to(group["anchor_dtype"], memory_format=torch.preserve_format)
            anchor = low if torch.equal(low.to(p.dtype), p) else p  # exact, or not in two bytes
        device = p.device if group["capturable"] else torch.device("cpu")
        return {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            # Part of the graph under `differentiable`: x_{k+1} depends on x_0 through the anchor too.
            "x0": anchor.clone(memory_format=torch.preserve_format) if anchor is p else anchor,
            "s": torch.zeros_like(
                p,
                dtype=HALF.get(p.dtype, p.dtype),
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
                if group.get("anchor_dtype") is not None:
                    self._round(p, group)
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
        # Whatever is wrong is said before anything has changed. Not in a compiled step, which would have to
        # wait for its own outcome.
        traced = torch.compiler.is_compiling()
        looked = [None if traced else self._look_at(i, group) for i, group in enumerate(self.param_groups)]
        if not traced and self._unsure:  # in this order, or dynamo would watch what a first step sets
            for i in self._round_late():
                looked[i] = self._look_at(i, self.param_groups[i])

        for group, known in zip(self.param_groups, looked, strict=True):
            if isinstance(known, Prepared):
                if not known.ks:
                    continue
                lr, c = lr_and_c(group)
                weights = self._weights(group, lr, known.ks, [])
                known.take(*weights, c=c, weight_decay=group["weight_decay"], maximize=group["maximize"])
                continue
            params: list[Tensor] = []
            grads: list[Tensor] = []
            x0s: list[Tensor] = []
            sums: list[Tensor] = []
            steps: list[Tensor] = []
            betas: list[Tensor] = []
            averages: list[Tensor] = []
            if known is None:
                self._init_group(group, params, grads, x0s, sums, steps, betas, averages)
            else:
                params, grads, x0s, sums, steps, betas, averages = known
            if not params:
                continue
            lr, c = lr_and_c(group)
            ks = next_step_numbers(group, params, steps)
            if averages:
                self._average(params, averages, ks)
            lambdas, scales = self._weights(group, lr, ks, betas)
            _kernels.update(
                params,
                grads,
                x0s,
                sums,
                lambdas,
                scales,
                ks,
                c=c,
                weight_decay=group["weight_decay"],
                maximize=group["maximize"],
                foreach=group["foreach"],
                fused=group["fused"],
                differentiable=group["differentiable"],
                has_sparse_grad=True in [grad.is_sparse for grad in grads],
            )
        return loss

    def _average(self, params: list[Tensor], averages: list[Tensor], ks: list[Scalar]) -> None:
        """Take the x_k at which the gradients were taken into the averaged iterate, if one is kept."""

    def _check_ready(self) -> None:
        """Raise if this is no time for a step."""

    def _look_at(self, i: int, group: Group) -> Prepared | tuple[list[Tensor], ...] | None:
        """Raise one sentence about what is wrong; what a step needs, unless some of it is to be made first.

        A capturable step does not read a tensor lr.
        """
        check_settings(group, read_tensors=not group["capturable"])
        for key in ("lr", "momentum", "weight_decay"):
            if not isinstance(group[key], float | Tensor):
                group[key] = float(group[key])  # a scheduler's numpy number: torch.load would not take it
        keys = self._state_keys(group)
        if group["fused"] and not group["capturable"] and keys == KEPT:
            prepared = prepare(group["params"], self.state)
            if prepared:
                return prepared
        return self._checked(i, group, keys)

    @torch.no_grad()
    def _round(self, p: Tensor, group: Group) -> None:
        """Give a parameter without history a start that the anchor's dtype can hold.

        A changed starting point, not a changed method. Later if lr = 0, when nothing may move:
        `torch.distributed.checkpoint` takes such a step on weights just loaded. Never if it would overflow.
        """
        if p.dtype != torch.float32:
            return
        if not float(group["lr"]) > 0:
            self._unsure = True
            return
        low = p.to(group["anchor_dtype"])
        if torch.equal(low.isfinite(), p.isfinite()):
            p.copy_(low)

    def _round_late(self) -> list[int]:
        """Round what had its first step at lr = 0 and has not moved since; return the groups it is in."""
        changed, waiting, settled = [], False, set(self._settled)
        for i, group in enumerate(self.param_groups):
            if group.get("anchor_dtype") is None:
                continue
            for p in group["params"]:
                state = self.state.get(p)
                if not state or id(p) in settled:
                    continue
                kept = p.dtype != torch.float32 or state["x0"].dtype != p.dtype
                if kept or state["step"] == 0 or state["s"].any() or not torch.equal(p.detach(), state["x0"]):
                    settled.add(id(p))
                elif not float(group["lr"]) > 0:
                    waiting = True
                else:
                    self._round(p, group)
                    state["x0"] = self._new_state(p, group)["x0"]
                    settled.add(id(p))
                    changed.append(i)
        self._unsure, self._settled = waiting, frozenset(settled)
        return sorted(set(changed))

    def _checked(self, i: int, group: Group, keys: set[str]) -> tuple[list[Tensor], ...] | None:
        """What `_init_group` collects, if all of it has state."""
        found: tuple[list[Tensor], ...] = ([], [], [], [], [], [], [])
        params, grads, x0s, sums, steps, betas, averages = found
        new = False
        for j, p in enumerate(group["params"]):
            grad = p.grad
            if grad is None:
                continue
            state, shape = self.state.get(p), p.shape
            if not state:
                new = True
                wrong = what_is_wrong_with_new(p, grad)
            else:
                good = isinstance(state, dict) and state.keys() == keys
                if good:
                    s, x0, step = state["s"], state["x0"], state["step"]
                    try:
                        good = s.shape == shape == grad.shape == x0.shape and isinstance(step, Tensor)
                        near = p.is_cpu and s.is_cpu and x0.is_cpu
                        good = good and (near or s.device == p.device == x0.device)
                    except AttributeError:  # of no tensor
                        good = False
                    params.append(p)
                    grads.append(grad)
                    x0s.append(x0)
                    sums.append(s)
                    steps.append(step)
                    if "beta" in state:
                        betas.append(state["beta"])
                    if "average" in state:
                        averages.append(state["average"])
                wrong = "" if good else what_is_wrong_with(p, grad, state, keys)
            if wrong:
                name = repr(group["param_names"][j]) if "param_names" in group else f"{j} of group {i}"
                raise ValueError(f"Parameter {name} {wrong}")
        return None if new else found

    @torch.no_grad()
    def reset_anchor(self) -> None:
        """Start the method anew at the current parameters: x0 = x, s = 0, k = 0.

        For those who load weights into the model after the optimizer already has state, as
        `torch.distributed.checkpoint` does: it fills an optimizer's state by a step of its own, and the
        anchor would stay at the weights of that moment. Also the right call after any other jump of the
        parameters that the optimizer did not make.
        """
        self._check_ready()
        self._settled |= {id(p) for p in self.state}  # where they are is where they start, to the last bit
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
            self._unsure, self._settled = True, frozenset()

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
                    check_saved(key, value, p, i)
                checked[p] = {
                    key: value.clone().to(
                        "cpu" if key in COUNTERS and not settings["capturable"] else p.device
                    )
                    for key, value in state.items()
                }
        return checked
