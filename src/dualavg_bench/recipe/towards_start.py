"""Two optimizers that pull parameters to where they started, as is done by hand in fine-tuning.

The start is a parameter's value before its first step. `weight_decay` is the strength of the pull.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


class _TowardsStart(torch.optim.Optimizer):
    """State and loop that both share; `_update` takes one step with one parameter."""

    AVERAGES: ClassVar[tuple[str, ...]] = ("m",)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state |= {"start": p.clone(), **{name: torch.zeros_like(p) for name in self.AVERAGES}}
                    self._update(p, p.grad, state, group)
        return loss

    def _update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class SGDTowardsStart(_TowardsStart):
    r"""SGD with momentum and L2-SP: the penalty strength/2 ||x - x_0||^2, in place of strength/2 ||x||^2.

    References:
        Li, Grandvalet and Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional
        Networks", ICML 2018, arXiv:1802.01483.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        # h_k = g_k + strength (x_k - x_0), the gradient with the penalty
        h = grad.add(p - state["start"], alpha=group["weight_decay"])
        # m_k = momentum m_{k-1} + h_k, as torch.optim.SGD
        m = state["m"].mul_(group["momentum"]).add_(h)
        # x_{k+1} = x_k - lr m_k
        p.sub_(group["lr"] * m)


class AdamWTowardsStart(_TowardsStart):
    """AdamW whose decoupled weight decay pulls to the start instead of zero.

    It is AdamW in the coordinates x - x_0.

    References:
        Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, arXiv:1711.05101,
        Algorithm 2, with x - x_0 in place of x in the decay.
    """

    AVERAGES = ("m", "v")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        k = state["k"] = state.get("k", 0) + 1
        # x_k <- x_k - lr strength (x_k - x_0)
        p.sub_(lr * group["weight_decay"] * (p - state["start"]))
        # m_k = beta1 m_{k-1} + (1 - beta1) g_k,  v_k = beta2 v_{k-1} + (1 - beta2) g_k^2
        m = state["m"].lerp_(grad, 1 - beta1)
        v = state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # x_{k+1} = x_k - lr (m_k / (1 - beta1^k)) / (sqrt(v_k / (1 - beta2^k)) + eps)
        p.sub_(lr / (1 - beta1**k) * m / ((v / (1 - beta2**k)).sqrt() + group["eps"]))
