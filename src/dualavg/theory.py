"""The theory of MDA as functions: the decaying pull, the equivalent forms, Theorem 1.

Every form takes `grad(x, k)`, the (stochastic) gradient of step `k` at `x`, the initial point `x0`
and the step sizes `lrs`, where `lrs[k]` is eta_k. Forms with momentum also take `cs`, where `cs[k]`
is c_{k+1}: one minus the momentum, used together with `lrs[k]`. Every form returns the list
x_0, x_1, .., x_n of all its iterates, with n the number of step sizes.

| form | what it is |
|---|---|
| `recursive_form` | MDA, without the sum of gradients |
| `regularized_sgd` | MDA without momentum, as Proposition 1 has it |
| `sgd` | dual averaging with beta_k = 1 and lambda_k = eta_k |
| `heavy_ball` | stochastic primal averaging, as SGD with momentum |
| `primal_averaging` | SGD with momentum or, with `pull=True`, MDA |

Section, proposition, theorem and appendix numbers are those of Jelassi and Defazio, "Dual Averaging
is Surprisingly Effective for Deep Learning Optimization", 2020, arXiv:2010.10502.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

__all__ = [
    "alpha",
    "alpha_asymptote",
    "alpha_section2",
    "heavy_ball",
    "mda_lr",
    "primal_averaging",
    "recursive_form",
    "regularized_sgd",
    "sgd",
    "sgd_lr",
    "theorem1_average",
    "theorem1_bound",
]

Gradient = Callable[[Tensor, int], Tensor]
Number = TypeVar("Number", float, Tensor, float | Tensor)


def alpha(k: int, lr: float) -> float:
    r"""Strength of the pull towards x_0 at step k.

    $$\alpha_k = \frac{\beta_k - \beta_{k-1}}{\lambda_k}
               = \frac{\sqrt{k+1} - \sqrt{k}}{\eta_k \sqrt{k+1}}$$

    MDA without momentum on $f$ is SGD on $f(x) + \frac{\alpha_k}{2} \|x - x_0\|^2$. One step takes
    the share $\eta_k \alpha_k$ of the way back to $x_0$, whatever the step size.

    Args:
        k: the step, counted from 0.
        lr: eta_k, not zero: there the share of the way back stays, and alpha_k is infinite.

    Examples:
        >>> alpha(0, lr=0.5)
        2.0
        >>> alpha(10**12, lr=1.0)
        4.99999999999625e-13

    Departures from the paper:
        Section 2 and appendix B print this one step later, see `alpha_section2`.

    References:
        Proposition 1.
    """
    _check_step(k, lr)
    # sqrt(k+1) - sqrt(k) = 1 / (sqrt(k+1) + sqrt(k)), which does not cancel
    return 1 / (lr * math.sqrt(k + 1) * (math.sqrt(k + 1) + math.sqrt(k)))


def alpha_asymptote(k: int, lr: float) -> float:
    r"""First order of alpha_k in 1/k; alpha_k lies above it.

    $$\frac{1}{2 \eta_k (k+1)}, \quad
      \alpha_k = \frac{1}{2 \eta_k (k+1)} \left(1 + \frac{1}{4(k+1)} + O(k^{-2})\right)$$

    Args:
        k: the step, counted from 0.
        lr: eta_k.

    Examples:
        >>> alpha_asymptote(99, lr=1.0), round(alpha(99, lr=1.0), 7)
        (0.005, 0.0050126)

    Departures from the paper:
        Section 2 has 1/(k+2), without the factor 1/(2 eta_k).
    """
    _check_step(k, lr)
    return 1 / (2 * lr * (k + 1))


def alpha_section2(k: int, lr: float) -> float:
    r"""Strength of the pull with the index that Section 2, appendix B and Theorem 1 print.

    $$\frac{\sqrt{k+2} - \sqrt{k+1}}{\eta_k \sqrt{k+2}}$$

    It is `alpha` one step later, and not what Algorithm 2 does. Appendix B's bound
    $\alpha_k \le 1 / (2 \eta (k+1))$ holds for this index only.

    Args:
        k: the step, counted from 0.
        lr: eta_k.

    Examples:
        >>> alpha_section2(7, lr=1.0) == alpha(8, lr=1.0)
        True
        >>> alpha_section2(7, lr=1.0) < alpha_asymptote(7, lr=1.0) < alpha(7, lr=1.0)
        True
    """
    _check_step(k, lr)
    return alpha(k + 1, lr)


def recursive_form(grad: Gradient, x0: Tensor, lrs: Sequence[float], cs: Sequence[float]) -> list[Tensor]:
    r"""Run MDA without its sum of gradients.

    $$z_{k+1} = r_k z_k + (1 - r_k) x_0 - \eta_k g_k, \quad r_k = \sqrt{k/(k+1)}$$

    $$x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}$$

    Args:
        grad: `grad(x, k)`, the gradient of step k at x.
        x0: the initial point.
        lrs: eta_0 .. eta_{n-1}.
        cs: c_1 .. c_n.

    Examples:
        >>> import torch
        >>> xs = recursive_form(lambda x, k: x, torch.ones(1), lrs=[0.5] * 3, cs=[1.0] * 3)
        >>> [round(x.item(), 4) for x in xs]
        [1.0, 0.5, 0.3964, 0.309]
    """
    xs = [x0]
    x = z = x0
    for k, (lr, c) in enumerate(zip(lrs, cs, strict=True)):
        r = math.sqrt(k / (k + 1))
        # z_{k+1} = r_k z_k + (1 - r_k) x_0 - eta_k g_k
        z = r * z + (1 - r) * x0 - lr * grad(x, k)
        # x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}
        x = (1 - c) * x + c * z
        xs.append(x)
    return xs


def regularized_sgd(
    grad: Gradient, x0: Tensor, lrs: Sequence[float], alphas: Sequence[float] | None = None
) -> list[Tensor]:
    r"""Run SGD on f plus a decaying penalty, which is dual averaging without momentum.

    $$x_{k+1} = x_k - \eta_k \nabla h_k(x_k), \quad
      h_k(x) = f(x) + \frac{\alpha_k}{2} \|x - x_0\|^2$$

    Dual averaging with any $\lambda$ and $\beta$ has this form, with $\eta_k = \lambda_k / \beta_k$
    and $\alpha_k = (\beta_k - \beta_{k-1}) / \lambda_k$.

    Args:
        grad: `grad(x, k)`, the gradient of step k at x.
        x0: the initial point.
        lrs: eta_0 .. eta_{n-1}, none of them zero unless `alphas` is given.
        alphas: alpha_0 .. alpha_{n-1}; those of MDA, `alpha(k, lrs[k])`, unless given.

    Examples:
        >>> import torch
        >>> xs = regularized_sgd(lambda x, k: x, torch.ones(1), lrs=[0.5] * 3)
        >>> [round(x.item(), 4) for x in xs]
        [1.0, 0.5, 0.3964, 0.309]

    Departures from the paper:
        The proof of Proposition 1 drops x_0 from the pull, its statement does not.

    References:
        Proposition 1.
    """
    if alphas is None:
        alphas = [alpha(k, lr) for k, lr in enumerate(lrs)]
    xs = [x0]
    x = x0
    for k, (lr, alpha_k) in enumerate(zip(lrs, alphas, strict=True)):
        # x_{k+1} = x_k - eta_k (g_k + alpha_k (x_k - x_0))
        x = x - lr * (grad(x, k) + alpha_k * (x - x0))
        xs.append(x)
    return xs


def sgd(grad: Gradient, x0: Tensor, lrs: Sequence[float]) -> list[Tensor]:
    r"""Run SGD, which is dual averaging with beta_k = 1 and lambda_k = eta_k, hence alpha_k = 0.

    $$x_{k+1} = x_k - \eta_k g_k$$

    Args:
        grad: `grad(x, k)`, the gradient of step k at x.
        x0: the initial point.
        lrs: eta_0 .. eta_{n-1}.

    Examples:
        >>> import torch
        >>> [x.item() for x in sgd(lambda x, k: x, torch.ones(1), lrs=[0.5] * 3)]
        [1.0, 0.5, 0.25, 0.125]
    """
    return regularized_sgd(grad, x0, lrs, alphas=[0.0] * len(lrs))


def heavy_ball(grad: Gradient, x0: Tensor, lrs: Sequence[float], cs: Sequence[float]) -> list[Tensor]:
    r"""Run stochastic primal averaging as SGD with momentum.

    $$x_{k+1} = x_k - c_{k+1} \eta_k g_k + c_{k+1} \left(\frac{1}{c_k} - 1\right) (x_k - x_{k-1})$$

    With constant $c$ this is momentum $1 - c$ and step $c \eta_k$, and with constant $\eta$ as well
    it is `torch.optim.SGD(lr=c * eta, momentum=1 - c)`. That class multiplies its whole buffer by
    the newest step size. While $\eta_k$ changes, its momentum has to be
    $(1 - c_k) \eta_{k-1} / \eta_k$ at step $k$ to stay equal.

    Args:
        grad: `grad(x, k)`, the gradient of step k at x.
        x0: the initial point.
        lrs: eta_0 .. eta_{n-1}, as MDA counts them: the step of SGD is c_{k+1} eta_k.
        cs: c_1 .. c_n, none of them zero.

    Examples:
        >>> import torch
        >>> xs = heavy_ball(lambda x, k: x, torch.ones(1), lrs=[0.5] * 3, cs=[0.5] * 3)
        >>> [x.item() for x in xs]
        [1.0, 0.75, 0.4375, 0.171875]

    References:
        Appendix A; Sebbouh, Gower and Defazio, "On the convergence of the stochastic heavy ball
        method", 2020; Tao, Pan, Wu and Tao, "Primal averaging", 2018.
    """
    xs = [x0]
    x_before = x = x0
    c_before = 1.0
    for k, (lr, c) in enumerate(zip(lrs, cs, strict=True)):
        # x_{k+1} = x_k - c_{k+1} eta_k g_k + c_{k+1} (1/c_k - 1) (x_k - x_{k-1})
        x_next = x - c * lr * grad(x, k) + c * (1 / c_before - 1) * (x - x_before)
        x_before, x, c_before = x, x_next, c
        xs.append(x)
    return xs


def primal_averaging(
    grad: Gradient,
    x0: Tensor,
    lrs: Sequence[float],
    cs: Sequence[float],
    *,
    pull: bool = False,
) -> list[Tensor]:
    r"""Run stochastic primal averaging (SPA): SGD with momentum, or MDA if z is pulled to x_0.

    $$z_{k+1} = z_k - \eta_k g_k - \left(1 - \sqrt{k/(k+1)}\right) (z_k - x_0)$$

    $$x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}$$

    The last term of the first line is the pull. Without it, $x$ is the iterate of `heavy_ball`.

    Args:
        grad: `grad(x, k)`, the gradient of step k at x.
        x0: the initial point.
        lrs: eta_0 .. eta_{n-1}.
        cs: c_1 .. c_n.
        pull: whether z is pulled towards x_0.

    Examples:
        >>> import torch
        >>> for pull in (False, True):
        ...     lrs, cs = [0.5] * 3, [0.5] * 3
        ...     xs = primal_averaging(lambda x, k: x, torch.ones(1), lrs, cs, pull=pull)
        ...     print([round(x.item(), 4) for x in xs])
        [1.0, 0.75, 0.4375, 0.1719]
        [1.0, 0.75, 0.5107, 0.3303]

    References:
        Appendix A.
    """
    xs = [x0]
    x = z = x0
    for k, (lr, c) in enumerate(zip(lrs, cs, strict=True)):
        # eta_k alpha_k = 1 - sqrt(k/(k+1)), which eta_k = 0 has too
        share = 1 - math.sqrt(k / (k + 1)) if pull else 0.0
        # z_{k+1} = z_k - eta_k g_k - eta_k alpha_k (z_k - x_0)
        z = z - lr * grad(x, k) - share * (z - x0)
        # x_{k+1} = (1 - c_{k+1}) x_k + c_{k+1} z_{k+1}
        x = (1 - c) * x + c * z
        xs.append(x)
    return xs


def mda_lr(sgd_lr: Number, momentum: float) -> Number:
    r"""Convert a step size of SGD with momentum to one of MDA: $\eta = lr / (1 - momentum)$.

    Args:
        sgd_lr: the `lr` of `torch.optim.SGD`.
        momentum: the momentum of both.

    Examples:
        >>> round(mda_lr(0.1, momentum=0.9), 12)
        1.0

    References:
        "Tips for usage".
    """
    return sgd_lr / _one_minus(momentum)


def sgd_lr(mda_lr: Number, momentum: float) -> Number:
    r"""Convert a step size of MDA to one of SGD with momentum: $lr = (1 - momentum) \eta$.

    Args:
        mda_lr: the `lr` of MDA.
        momentum: the momentum of both.

    Examples:
        >>> round(sgd_lr(2.5, momentum=0.9), 12)
        0.25
    """
    return mda_lr * _one_minus(momentum)


def theorem1_average(x_grad_norms: Sequence[float], z_grad_norms: Sequence[float]) -> float:
    r"""Left-hand side of Theorem 1: the averaged squared gradient norm of one run.

    $$\frac{1}{2T} \sum_{k=0}^{T} \left(\|\nabla f(x_k)\|^2 + \|\nabla f(z_k)\|^2\right)$$

    Args:
        x_grad_norms: norms of the true gradient at x_0 .. x_T, not squared.
        z_grad_norms: the same at z_0 .. z_T.

    Examples:
        >>> theorem1_average([2.0, 1.0, 1.0], [2.0, 1.0, 0.0])
        2.75
    """
    steps = len(x_grad_norms) - 1
    if steps < 1 or len(z_grad_norms) != steps + 1:
        raise ValueError("x_grad_norms and z_grad_norms must both have T+1 entries, with T >= 1.")
    return math.fsum(norm**2 for norm in (*x_grad_norms, *z_grad_norms)) / (2 * steps)


def theorem1_bound(
    *,
    steps: int,
    c: float,
    smoothness: float,
    second_moment: float,
    radius: float,
    gap_start: float,
    gap_z_end: float = 0.0,
    gap_x_end: float = 0.0,
) -> float:
    r"""Right-hand side of Theorem 1, for MDA with eta_k = 1/sqrt(T) and constant c.

    $$\frac{2 (\Delta_0 - \Delta_z)}{\sqrt{T}}
      + 2 \left(\frac{1}{c} - 1\right) \frac{(L+1) \Delta_0 - (L+\alpha_T) \Delta_x}{T}$$

    $$ + 2 \left[\left(\frac{L}{\sqrt{T}} + \frac{\log(T+1)}{T}\right) \sigma^2
      + \left(\frac{L \log T}{T} + \frac{2 \log T}{\sqrt{T}}\right) R^2\right]$$

    It bounds the expectation of `theorem1_average`. Without the gaps at the end it is larger, and
    known before the run but for R.

    Args:
        steps: T. The left-hand side sums the T+1 points k = 0 .. T.
        c: one minus the momentum, the same at every step, in (0, 1].
        smoothness: L, the Lipschitz constant of the gradient.
        second_moment: sigma^2, a bound on E ||g_k||^2: the second moment, not the variance.
        radius: R, the largest ||x_k - x_0|| or ||z_k - x_0|| along the run.
        gap_start: Delta_0 = f(x_0) - f*.
        gap_z_end: Delta_z = E[f(z_{T+1})] - f*.
        gap_x_end: Delta_x = E[f(x_T)] - f*.

    Raises:
        ValueError: if an assumption of the theorem does not hold.

    Examples:
        >>> bound = theorem1_bound(
        ...     steps=400, c=0.1, smoothness=2.0, second_moment=1.0, radius=1.0, gap_start=1.0
        ... )
        >>> round(bound, 4)
        1.7232

    Departures from the paper:
        None: the number is the printed one. But the proof takes the gradient of the pull at x_k,
        whereas Algorithm 2 pulls z_k, so that with momentum it is about another method than MDA,
        and some printed constants are smaller than the proof supports. The documentation's page
        "The algorithm" has the list. R is taken along the run, since assumption 2's supremum over
        the whole space is infinite.

    References:
        Theorem 1 and appendix B.
    """
    quantities = (smoothness, second_moment, radius, gap_start, gap_z_end, gap_x_end)
    if steps < 1:
        raise ValueError(f"Theorem 1 needs at least one step, but steps is {steps}.")
    if not 0 < c <= 1:
        raise ValueError(f"Theorem 1 assumes c in (0, 1], but c is {c}.")
    if not all(quantity >= 0 for quantity in quantities):
        raise ValueError("Theorem 1's L, sigma^2, R and gaps to f* cannot be negative or NaN.")
    if steps < (smoothness / c) ** 2:
        least = (smoothness / c) ** 2
        raise ValueError(f"Theorem 1 assumes T >= L^2/c^2 = {least:g}, but steps is {steps}.")
    root, log = math.sqrt(steps), math.log(steps)
    alpha_end = alpha_section2(steps, lr=1 / root)
    # descent from start to end: 2 (Delta_0 - Delta_z) / sqrt(T)
    descent = 2 * (gap_start - gap_z_end) / root
    # 2 (1/c - 1) ((L+1) Delta_0 - (L+alpha_T) Delta_x) / T
    gaps = (smoothness + 1) * gap_start - (smoothness + alpha_end) * gap_x_end
    momentum = 2 * (1 / c - 1) * gaps / steps
    # 2 (L/sqrt(T) + log(T+1)/T) sigma^2
    noise = 2 * (smoothness / root + math.log(steps + 1) / steps) * second_moment
    # 2 (L log(T)/T + 2 log(T)/sqrt(T)) R^2
    pull = 2 * (smoothness * log / steps + 2 * log / root) * radius**2
    return descent + momentum + noise + pull


def _check_step(k: int, lr: float) -> None:
    if k < 0:
        raise ValueError(f"Steps count from 0, but k is {k}.")
    if not lr > 0:
        raise ValueError(f"alpha_k needs a positive step size, but lr is {lr}.")


def _one_minus(momentum: float) -> float:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), but it is {momentum}.")
    return 1 - momentum
