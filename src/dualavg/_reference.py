"""The paper, transcribed: float64, out of place, every iterate kept.

This module is what the fast optimizers are tested against. It shares no code with them and is not
fast. Steps count from ``k = 0``; ``x[k]``, ``z[k]``, ``s[k]``, ``beta[k]`` and ``lam[k]`` are the
paper's x_k, z_k, s_k, beta_k and lambda_k.
"""

import math
from typing import Literal

import torch
from torch import Tensor


class ReferenceDualAveraging:
    """Dual averaging with momentum: Algorithm 1, Algorithm 2 and the ablation between them.

    ``c = 1`` at every step is Algorithm 1, with :meth:`average` its result. The other rows return
    the last iterate, ``x[-1]``.

    Args:
        x0: the initial point, copied to float64 (complex128 if complex).
        weighting: ``"constant"`` for lambda_k = eta_k, ``"sqrt"`` for lambda_k = eta_k sqrt(k+1).
        scaling: ``"sqrt"`` for beta_k = sqrt(k+1), ``"nesterov"`` for the recursion
            beta_{k+1} = beta_k + 1/beta_k from beta_0 = 1, ``"constant"`` for beta_k = 1.
    """

    def __init__(
        self,
        x0: Tensor,
        weighting: Literal["constant", "sqrt"] = "constant",
        scaling: Literal["sqrt", "nesterov", "constant"] = "sqrt",
    ) -> None:
        self.weighting = weighting
        self.scaling = scaling
        self.x0 = _double(x0)
        self.x: list[Tensor] = [self.x0]
        self.z: list[Tensor] = [self.x0]
        self.s: list[Tensor] = []
        self.beta: list[float] = []
        self.lam: list[float] = []

    def step(
        self,
        grad: Tensor,
        lr: float,
        c: float,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> Tensor:
        """Take step k and return x_{k+1}.

        Args:
            grad: the gradient of the objective at ``x[-1]``, without weight decay.
            lr: eta_k.
            c: c_{k+1}, one minus the momentum.
            weight_decay: coefficient of the L2 penalty.
            maximize: ascend the objective instead; the penalty is still descended.
        """
        k = len(self.s)
        x_k = self.x[k]

        # g_k, of the objective with its L2 penalty (weight_decay/2) ||x||^2
        g_k = -_double(grad) if maximize else _double(grad)
        g_k = g_k + weight_decay * x_k

        # beta_k = sqrt(k+1), or beta_k = beta_{k-1} + 1/beta_{k-1} from beta_0 = 1, or beta_k = 1
        if self.scaling == "sqrt":
            beta_k = math.sqrt(k + 1)
        elif self.scaling == "nesterov" and k > 0:
            beta_k = self.beta[k - 1] + 1 / self.beta[k - 1]
        else:
            beta_k = 1.0

        # lambda_k = eta_k sqrt(k+1), or lambda_k = eta_k
        lambda_k = lr * math.sqrt(k + 1) if self.weighting == "sqrt" else lr

        # s_k = s_{k-1} + lambda_k g_k, from s_{-1} = 0
        s_before = torch.zeros_like(self.x0) if k == 0 else self.s[k - 1]
        s_k = s_before + lambda_k * g_k

        # z_{k+1} = argmin_x { <s_k, x> + (beta_k/2) ||x - x_0||^2 } = x_0 - s_k / beta_k
        z_next = self.x0 - s_k / beta_k

        # x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}
        x_next = (1 - c) * x_k + c * z_next

        self.beta.append(beta_k)
        self.lam.append(lambda_k)
        self.s.append(s_k)
        self.z.append(z_next)
        self.x.append(x_next)
        return x_next

    def average(self) -> Tensor:
        """Algorithm 1's result after n >= 1 steps: (1/n) sum of x_0 .. x_{n-1}."""
        n = len(self.s)
        return torch.stack(self.x[:n]).mean(dim=0)


class ReferenceMDA(ReferenceDualAveraging):
    """Modernized dual averaging, Algorithm 2: beta_k = sqrt(k+1), lambda_k = eta_k sqrt(k+1)."""

    def __init__(self, x0: Tensor) -> None:
        super().__init__(x0, weighting="sqrt", scaling="sqrt")


class ReferenceDAdaptMDA:
    """MDA with D-Adaptation: one estimate of the distance for several parameters.

    Args:
        x0s: the initial point of each parameter.
        d0: the first estimate, relative to 1 + ||x_0||.
        growth_rate: the largest factor from d_k to d_{k+1}.
    """

    def __init__(self, x0s: list[Tensor], d0: float = 1e-6, growth_rate: float = math.inf) -> None:
        self.mda = [ReferenceMDA(x0) for x0 in x0s]
        self.growth_rate = growth_rate
        self.d = [d0 * (1 + math.sqrt(sum(_inner(mda.x0, mda.x0) for mda in self.mda)))]
        self.r = 0.0
        self.squares: list[float] = []  # ||h_k||^2 of each step

    def step(
        self, grads: list[Tensor], lr: list[float], c: list[float], weight_decay: list[float], maximize: bool
    ) -> None:
        """Take step k. All lists have one entry per parameter; `lr` is gamma_k."""
        x = [mda.x[-1] for mda in self.mda]
        # h_k = g_k + weight_decay x_k
        signed = [-_double(g) if maximize else _double(g) for g in grads]
        h = [g + decay * x_k for g, decay, x_k in zip(signed, weight_decay, x, strict=True)]

        # eta_k = gamma_k d_k / G_k, G_k^2 the mean of the squares so far, and ||h_0||^2 before there are any
        squares = [_inner(h_k, h_k) for h_k in h]
        mean = sum(self.squares) / len(self.squares) if self.squares else sum(squares)
        eta = [gamma * self.d[-1] / math.sqrt(mean) if mean > 0 else 0.0 for gamma in lr]
        for mda, g, eta_k, c_k, decay in zip(self.mda, grads, eta, c, weight_decay, strict=True):
            mda.step(g, eta_k, c_k, decay, maximize)

        # Steps of a times the largest size: those of the largest size for x / sqrt(a), h sqrt(a), s / sqrt(a)
        a = [gamma / max(lr) if max(lr) > 0 else 0.0 for gamma in lr]
        inverse = [1 / each if each > 0 else 1.0 for each in a]
        if (total := sum(each * square for each, square in zip(a, squares, strict=True))) > 0:
            self.squares.append(total)

        # r_k = r_{k-1} + lambda_k <h_k, x_0 - x_k>
        for mda, h_k, x_k, weight in zip(self.mda, h, x, inverse, strict=True):
            self.r += weight * mda.lam[-1] * _inner(h_k, mda.x0 - x_k)

        # d_{k+1} = max(d_k, r_k / ||s_k||), at most growth_rate d_k
        sums = [weight * _inner(mda.s[-1], mda.s[-1]) for mda, weight in zip(self.mda, inverse, strict=True)]
        found = self.r / math.sqrt(sum(sums)) if sum(sums) > 0 else 0.0
        self.d.append(max(self.d[-1], min(found, self.growth_rate * self.d[-1])))


def coupled_c(c: float, lr: float, peak_lr: float) -> float:
    """c_k = min(1, c peak_lr / eta_k): as the step size falls, c rises in proportion, up to 1.

    Args:
        c: the averaging weight at the peak step size.
        lr: eta_k, the step size now; zero gives 1.
        peak_lr: the largest step size so far, this step's included.
    """
    return 1.0 if lr == 0 else min(1.0, c * peak_lr / lr)


def _inner(a: Tensor, b: Tensor) -> float:
    """<a, b>, of complex tensors as of twice as many real ones."""
    return float((a.conj() * b).real.sum())


def _double(tensor: Tensor) -> Tensor:
    """Return a detached copy of a tensor in the widest precision torch has."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(dtype, copy=True)
