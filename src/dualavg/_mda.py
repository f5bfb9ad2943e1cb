"""Modernized Dual Averaging (Algorithm 2 of Jelassi and Defazio)."""

import sys
import warnings
from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from dualavg._base import AnchoredOptimizer
from dualavg._scalars import Scalar, Weights, square_roots
from dualavg._validation import Group, validate_settings
from dualavg.theory import mda_lr

_SMALL_LR = 1e-3  # the largest lr that MDA warns about: Adam's default


class MDA(AnchoredOptimizer):
    r"""Modernized Dual Averaging.

    From the anchor $x_0$, the parameter's value before its first step, with $s_{-1} = 0$:

    $$\lambda_k = \eta_k \sqrt{k+1}, \quad \beta_k = \sqrt{k+1}$$

    $$s_k = s_{k-1} + \lambda_k (g_k + \text{weight decay} \cdot x_k)$$

    $$z_{k+1} = x_0 - s_k / \beta_k$$

    $$x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}$$

    with $\eta_k$ the group's `lr` and $c_{k+1} = 1 - \text{momentum}$. The last iterate is the result: there
    is nothing to average at the end, and no train() or eval() to call.

    Args:
        params: parameters, named parameters, or dicts that define groups.
        lr: step size $\eta$, a float or a one-element tensor. Start at `lr_sgd / (1 - momentum)`: 1.0 for
            SGD's usual 0.1 with momentum 0.9; up to 15 in language tasks. Adam's 1e-3 is far too small, and
            MDA warns if it is created with 1e-3 or less. It does not warn about 0, or what a schedule sets.
        momentum: as in SGD: 0.9 keeps nine tenths of the old iterate, so $c = 0.1$.
        weight_decay: L2 penalty. A lower value than for SGD or Adam is often best; try zero too.
        couple_momentum: raise $c$ in proportion as the step size is lowered,
            $c_{k+1} = \min(1, c \cdot \text{peak lr} / \eta_k)$, where `peak_lr` is the largest step size
            the group has seen: a warm-up leaves $c$ alone, a decay ends without momentum.
        maximize: maximize the objective instead of minimizing it.
        foreach: multi-tensor kernel. None uses it where `torch.optim` would.
        fused: one pass over memory on CPUs, by a C++ operator that is compiled at the first step and cached.
            On other devices or without a compiler: a warning, and the default kernel.
        anchor_dtype: `torch.bfloat16`, or the string "bfloat16", keeps `x0` in two bytes. To make that exact,
            float32 parameters are rounded to bfloat16 before their first step, which changes the starting
            point.
        capturable: keep the step count on the parameter's device, for CUDA graphs.
        differentiable: let autograd record the step; `x0` is part of the graph then.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = MDA(model.parameters(), lr=1.0)
        >>> inputs, targets = torch.randn(64, 2), torch.zeros(64, 1)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = torch.nn.functional.mse_loss(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        >>> loss.item() < 1e-2
        True

    Departures from the paper:
        Steps count from k = 0 per parameter, not per run: a parameter whose first gradient comes late starts
        its own k and x0 then. For parameters in half precision, `s` and the arithmetic are float32, and the
        parameter is rounded once per step by dithered rounding: see the page "Half precision" of the
        documentation. The paper's text omits x0 in places, its algorithm does not: see the page "The
        algorithm".

    References:
        Jelassi and Defazio, "Dual Averaging is Surprisingly Effective for Deep Learning Optimization",
        2020, arXiv:2010.10502, Algorithm 2.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        couple_momentum: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        anchor_dtype: torch.dtype | Literal["bfloat16"] | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "couple_momentum": couple_momentum,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
                "anchor_dtype": anchor_dtype,
            },
        )
        _warn_if_small(self)

    @classmethod
    def from_sgd(
        cls,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        **settings: Any,
    ) -> "MDA":
        """Build MDA from settings that work for `torch.optim.SGD`: MDA's step size is lr / (1 - momentum).

        Args:
            params: as for SGD; a group's own `lr` and `momentum` are converted too.
            lr: SGD's step size.
            momentum: SGD's momentum.
            weight_decay: SGD's weight decay, unchanged; the paper finds that less is often better.
            **settings: any other setting of MDA.

        Examples:
            >>> import torch
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = MDA.from_sgd(model.parameters(), lr=0.1, momentum=0.5)
            >>> optimizer.param_groups[0]["lr"]
            0.2
        """
        sgd = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        others: Group = {"foreach": None, "fused": None, "differentiable": False}
        validate_settings({**others, **sgd})
        groups = [params] if isinstance(params, Tensor) else list(cast(Iterable[Any], params))
        for i, group in enumerate(groups):
            if isinstance(group, dict):
                validate_settings({**others, **sgd, **group})
                converted = mda_lr(group.get("lr", lr), group.get("momentum", momentum))
                groups[i] = {**group, "lr": converted}
        return cls(groups, mda_lr(lr, momentum), momentum, weight_decay, **settings)

    def _weights(self, _group: Group, lr: Scalar, ks: list[Scalar], _betas: list[Tensor]) -> Weights:
        # beta_k = sqrt(k+1), lambda_k = eta_k sqrt(k+1)
        roots = square_roots(ks)
        return [lr * root for root in roots], roots


def _warn_if_small(optimizer: MDA) -> None:
    """Warn, once for all groups, about an lr of Adam's size: a network would stay where it is, silently.

    0 is nobody's habit from Adam, but stands for "set later" or "not trained", so it does not warn.
    """
    settings = [group["lr"] for group in optimizer.param_groups]
    lrs = [lr.item() if isinstance(lr, Tensor) else lr for lr in settings]
    small = [lr for lr in lrs if 0 < lr <= _SMALL_LR]
    if not small:
        return
    # The line that creates the optimizer: outside of dualavg, and of a subclass's __init__.
    depth, frame = 2, sys._getframe(1)
    while frame.f_back and (
        frame.f_globals.get("__name__", "").partition(".")[0] == "dualavg"
        or (frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is optimizer)
    ):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(
        f"lr={small[0]:g} hardly moves a network with MDA: usual is 0.1 to 15. "
        "MDA.from_sgd(params, lr=..., momentum=...) converts the lr of SGD.",
        stacklevel=depth,
    )
