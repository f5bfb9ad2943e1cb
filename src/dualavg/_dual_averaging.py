"""Dual averaging (Algorithm 1) and the steps from it to MDA (the ablation of Section 4)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from dualavg._base import AnchoredOptimizer
from dualavg._scalars import Scalar, Weights, square_roots
from dualavg._update import as_real, like
from dualavg._validation import Group

_CHOICES = {"weighting": ("constant", "sqrt"), "scaling": ("sqrt", "nesterov")}


class DualAveraging(AnchoredOptimizer):
    r"""Stochastic dual averaging; each step of the ablation from it to MDA is one setting.

    From the anchor $x_0$, the parameter's value before its first step, with $s_{-1} = 0$:

    $$s_k = s_{k-1} + \lambda_k (g_k + \text{weight decay} \cdot x_k)$$

    $$x_{k+1} = (1 - c) x_k + c (x_0 - s_k / \beta_k)$$

    | method | momentum | weighting | scaling | result |
    |---|---|---|---|---|
    | textbook (Nesterov, 2009) | 0 | constant | nesterov | averaged iterate |
    | "Dual averaging" of the ablation | 0 | constant | sqrt | last iterate |
    | "+ Momentum" | 0.9 | constant | sqrt | last iterate |
    | "+ $\lambda \propto \sqrt{k+1}$", which is MDA | 0.9 | sqrt | sqrt | last iterate |

    Args:
        params: parameters, named parameters, or dicts that define groups.
        lr: step size $\eta$, a float or a one-element tensor.
        momentum: as in SGD; $c = 1 - \text{momentum}$. 0 is Algorithm 1.
        weighting: $\lambda_k = \eta_k$ ("constant") or $\eta_k \sqrt{k+1}$ ("sqrt").
        scaling: $\beta_k = \sqrt{k+1}$ ("sqrt"), or $\beta_{k+1} = \beta_k + 1/\beta_k$ from
            $\beta_0 = 1$ ("nesterov").
        weight_decay: L2 penalty.
        average: keep the averaged iterate, in one more buffer per parameter.
        couple_momentum: as in `MDA`; no effect without momentum.
        maximize: maximize the objective instead of minimizing it.
        foreach: multi-tensor kernel. None uses it where `torch.optim` would.
        fused: one pass over memory, as in `MDA`.
        capturable: keep the step count on the parameter's device, for CUDA graphs.
        differentiable: let autograd record the step.

    Examples:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> optimizer = DualAveraging([x], lr=1.0, scaling="nesterov")
        >>> for _ in range(400):
        ...     optimizer.zero_grad()
        ...     (x - 1).abs().sum().backward()
        ...     optimizer.step()
        >>> abs(optimizer.averaged_parameters()[0].item() - 1) < 0.1
        True

    Departures from the paper:
        The paper's closed form of the update omits x0; ours does not. With `weighting="constant"` the weight
        of a gradient is lr, not 1, so that a schedule has an effect.

    References:
        Jelassi and Defazio, "Dual Averaging is Surprisingly Effective for Deep Learning Optimization",
        2020, arXiv:2010.10502, Algorithm 1 and figure 1 (d). Nesterov, "Primal-dual subgradient methods for
        convex problems", Mathematical Programming 120, 2009.
    """

    _swapped_in = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        momentum: float = 0.0,
        weighting: Literal["constant", "sqrt"] = "constant",
        scaling: Literal["sqrt", "nesterov"] = "sqrt",
        weight_decay: float = 0.0,
        *,
        average: bool = True,
        couple_momentum: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weighting": weighting,
                "scaling": scaling,
                "weight_decay": weight_decay,
                "average": average,
                "couple_momentum": couple_momentum,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _validate_settings(self, group: Group) -> None:
        super()._validate_settings(group)
        for setting, choices in _CHOICES.items():
            if group[setting] not in choices:
                raise ValueError(f"{setting} must be one of {choices}, got {group[setting]!r}.")

    def _state_keys(self, group: Group) -> set[str]:
        kept = {"beta": group["scaling"] == "nesterov", "average": group["average"]}
        return super()._state_keys(group) | {key for key, is_kept in kept.items() if is_kept}

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        state = super()._new_state(p, group)
        if group["scaling"] == "nesterov":
            # In float64 if possible: each beta is computed from the last one. Not 0-dim: see new_peak.
            device = state["step"].device
            dtype = torch.float32 if device.type == "mps" else torch.float64
            state["beta"] = torch.ones(1, dtype=dtype, device=device)
        if group["average"]:
            state["average"] = p.detach().to(state["s"].dtype, copy=True)
        return state

    def _average(self, params: list[Tensor], averages: list[Tensor], ks: list[Scalar]) -> None:
        if not averages:
            return
        # (k+1) avg_k = k avg_{k-1} + x_k: the mean of the points at which gradients were computed
        with torch.no_grad():
            for p, mean, k in zip(params, averages, ks, strict=True):
                x, average = as_real(p), as_real(mean)
                average.lerp_(x.to(average.dtype), like(1 / k, average))

    def _weights(self, group: Group, lr: Scalar, ks: list[Scalar], betas: list[Tensor]) -> Weights:
        roots = square_roots(ks)
        # lambda_k = eta_k or eta_k sqrt(k+1)
        lambdas = [lr * root for root in roots] if group["weighting"] == "sqrt" else [lr] * len(ks)
        if group["scaling"] == "sqrt":
            return lambdas, roots
        # beta_{k+1} = beta_k + 1 / beta_k, beta_0 = 1
        tensors = isinstance(ks[0], Tensor)
        scales: list[Scalar] = [beta.squeeze().clone() if tensors else beta.item() for beta in betas]
        for beta in betas:
            beta.add_(1 / beta)
        return lambdas, scales

    def _check_ready(self) -> None:
        if self._swapped_in:
            raise RuntimeError(
                "Inside use_averaged_parameters() the model holds the averages: leave the block first."
            )

    def __getstate__(self) -> dict[str, Any]:
        self._check_ready()  # a copy would save the averages as the parameters
        return super().__getstate__()

    @torch.no_grad()
    def averaged_parameters(self) -> list[Tensor]:
        """Return Algorithm 1's result for each parameter: the mean of x_0, ..., x_k.

        Copies, in the parameters' order and dtype. Before its first step, a parameter is its own average.
        """
        averages = []
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p, {})
                if state and "average" not in state:
                    raise RuntimeError("No average is kept: create DualAveraging with average=True.")
                averages.append(state.get("average", p).to(p.dtype, copy=True))
        return averages

    @contextmanager
    def use_averaged_parameters(self) -> Iterator[None]:
        """Put the averaged parameters into the model; on exit, restore the parameters bit for bit.

        Also if the block raises. Inside it, a step, a reset, a copy or a second swap raises RuntimeError.

        Examples:
            >>> import torch
            >>> x = torch.nn.Parameter(torch.tensor([3.0]))
            >>> optimizer = DualAveraging([x])
            >>> for _ in range(2):
            ...     x.grad = torch.ones(1)
            ...     optimizer.step()
            >>> with optimizer.use_averaged_parameters():
            ...     x.item()  # the mean of 3 and 2
            2.5
            >>> round(x.item(), 4)
            1.5858
        """
        self._check_ready()
        averages = self.averaged_parameters()
        params = [p for group in self.param_groups for p in group["params"]]
        originals = [p.detach().clone() for p in params]
        self._swapped_in = True
        try:
            _copy(averages, params)
            yield
        finally:
            _copy(originals, params)
            self._swapped_in = False


@torch.no_grad()
def _copy(sources: list[Tensor], params: list[Tensor]) -> None:
    for p, source in zip(params, sources, strict=True):
        p.copy_(source)
