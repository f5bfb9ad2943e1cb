"""Why does MDA work? Three optimizers that differ in one factor: how strongly they pull back to the start.

MDA is primal averaging, which is SGD with momentum, plus a pull towards x0 (docs/algorithm.md). With f_k = 1,

    z_{k+1} = z_k - f_k (1 - sqrt(k / (k+1))) (z_k - x_0) - eta_k g_k          z_0 = x_0
    x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}                              c as in MDA

is MDA. The pull does not fade when a schedule lowers eta_k. Here it does (`FadingPull`), or there is none
(`NoPull`). The recipes beside this file, pull_cifar10.py and pull_wikitext103.py, tune and confirm both on
the miniatures of the benchmark, with the seeds of its own studies, so that they pair up with MDA's runs:

    dualavg study examples/pull_cifar10.py --scale mini --data DIR
"""

import math
from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


class Pulled(Optimizer):
    """MDA with f_k times its pull. Plain loops: this is for reading, `dualavg.MDA` is for use."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1.0, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "peak_lr": 0.0}
        )

    @abstractmethod
    def fraction(self, lr: float, peak_lr: float) -> float:
        """f_k, given the step size and the largest one so far."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Take a step."""
        for group in self.param_groups:
            lr = group["lr"]
            peak = group["peak_lr"] = max(group["peak_lr"], lr)
            # c_{k+1} = min(1, c peak_lr / eta_k)
            c = min(1.0, (1 - group["momentum"]) * peak / lr) if lr > 0 else 1.0
            f = self.fraction(lr, peak)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "x0": p.detach().clone(), "z": p.detach().clone()}
                k, x0, z = state["step"], state["x0"], state["z"]
                z.lerp_(x0, f * (1 - math.sqrt(k / (k + 1))))
                z.add_(p.grad, alpha=-lr).add_(p, alpha=-lr * group["weight_decay"])
                p.lerp_(z, c)
                state["step"] += 1


class FullPull(Pulled):
    """f_k = 1: MDA."""

    def fraction(self, lr: float, peak_lr: float) -> float:  # noqa: ARG002, D102
        return 1.0


class FadingPull(Pulled):
    """f_k = eta_k / peak lr: the pull fades together with the step size."""

    def fraction(self, lr: float, peak_lr: float) -> float:  # noqa: D102
        return lr / peak_lr if peak_lr > 0 else 1.0


class NoPull(Pulled):
    """f_k = 0: primal averaging, which is SGD with momentum."""

    def fraction(self, lr: float, peak_lr: float) -> float:  # noqa: ARG002, D102
        return 0.0
