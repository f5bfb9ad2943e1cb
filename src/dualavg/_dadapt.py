"""MDA without a learning rate: D-Adaptation for Modernized Dual Averaging."""

import functools
import math
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from dualavg._base import AnchoredOptimizer, StateDict, Updated
from dualavg._scalars import Scalar, Weights, keeps_tensors, larger, square_root, square_roots, where
from dualavg._update import inner_products, squared_norm
from dualavg._validation import Group

_SIZE = 5  # of `group["estimate"]`: d, r, the sum and the number of ||h||^2, and ||x_0||^2


class DAdaptMDA(AnchoredOptimizer):
    r"""Modernized Dual Averaging that finds its own step size.

    MDA with the step size $\eta_k = \gamma_k d_k / G_k$. Here $\gamma_k$ is the group's `lr`: 1 unless a
    schedule says otherwise. $d_k$ is a lower bound of the distance from the start to a solution, and $G_k$ is
    the root mean square of the gradient's norm over the steps before this one. With
    $h_k = g_k + \text{weight decay} \cdot x_k$, and with norms and products over all parameters:

    $$r_k = r_{k-1} + \lambda_k \langle h_k, x_0 - x_k \rangle$$

    $$d_{k+1} = \max(d_k, \, r_k / \lVert s_k \rVert), \quad d_0 = \text{d0} \cdot (1 + \lVert x_0 \rVert)$$

    `param_groups[0]["d"]` is the estimate and `param_groups[0]["eta"]` the step size of the last step.

    Args:
        params: parameters, named parameters, or dicts that define groups.
        lr: factor of the step size that is found. Leave it at 1.0, and let a schedule lower it from there.
            A group with a lower `lr` gets steps that are smaller in proportion.
        momentum: as in `MDA`.
        weight_decay: L2 penalty, as in `MDA`.
        d0: first estimate of the distance, relative to 1 + ||x_0||. It should be too small.
        growth_rate: largest factor by which the estimate may grow in one step.
        couple_momentum: as in `MDA`, with $\gamma_k$ as the step size.
        maximize: maximize the objective instead of minimizing it.
        foreach: multi-tensor kernel. None uses it where `torch.optim` would.
        fused: one pass over memory, as in `MDA`; the estimate costs no further pass.
        anchor_dtype: as in `MDA`.
        capturable: keep step counts and the estimate on the parameters' device, for CUDA graphs.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = DAdaptMDA(model.parameters())
        >>> inputs, targets = torch.randn(64, 2), torch.zeros(64, 1)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     loss = torch.nn.functional.mse_loss(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        >>> loss.item() < 1e-2
        True

    Departures from the literature:
        D-Adaptation weights gradients by d_k and divides by the root of their summed squares. Here the
        weights and the scaling are MDA's. The bound holds for convex functions and exact gradients.

    References:
        Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation", ICML 2023, arXiv:2301.07733.
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
        d0: float = 1e-6,
        growth_rate: float = math.inf,
        couple_momentum: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        fused: bool | None = None,
        anchor_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "d0": d0,
                "growth_rate": growth_rate,
                "couple_momentum": couple_momentum,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": False,
                "fused": fused,
                "anchor_dtype": anchor_dtype,
            },
        )

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        self._share_estimate()

    def add_param_group(self, param_group: Group) -> None:
        """Add a group. Its parameters start their own k = 0 and x0 at their first step."""
        super().add_param_group(param_group)
        self._share_estimate()

    def _share_estimate(self) -> None:
        """Let all groups hold the estimate of the first one."""
        first = self.param_groups[0]
        params = (p for group in self.param_groups for p in group["params"])
        p = next(params, None) if first["capturable"] else None
        device = torch.device("cpu") if p is None else p.device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        estimate = torch.as_tensor(first.get("estimate", [0.0] * _SIZE), device=device, dtype=dtype)
        for group in self.param_groups:
            group["estimate"] = estimate
            group.setdefault("d", 0.0)
            group.setdefault("eta", 0.0)

    def _validate_settings(self, group: Group) -> None:
        super()._validate_settings(group)
        if group["differentiable"]:
            raise ValueError("DAdaptMDA has no differentiable step: its step size is an estimate.")
        d0, growth_rate = group["d0"], group["growth_rate"]
        if not (isinstance(d0, Real) and 0 < float(d0) <= 1):
            raise ValueError(f"d0 must be a number above 0, at most 1, got {d0!r}.")
        if not (isinstance(growth_rate, Real) and float(growth_rate) > 1):
            raise ValueError(f"growth_rate must be a number above 1, got {growth_rate!r}.")

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        state = super()._new_state(p, group)
        *_, x0_squares = self.param_groups[0]["estimate"].unbind()
        x0_squares += _summed([squared_norm(state["x0"])], _shards(p))[0]
        return state

    def _read(self) -> list[Any]:
        """Return the estimate, as floats if possible, with d at least d0 (1 + ||x_0||)."""
        group = self.param_groups[0]
        tensors = keeps_tensors(group)
        estimate = list(group["estimate"].unbind()) if tensors else group["estimate"].tolist()
        d, *rest, x0_squares = estimate
        return [larger(d, group["d0"] * (1 + square_root(x0_squares))), *rest, x0_squares]

    def _prepare(self, gathered: list[Any]) -> None:
        _, _, g_squares, g_count, _ = self._read()
        if not (isinstance(g_count, Tensor) or g_count == 0):
            return
        # While none has been counted, G_k is the norm of this gradient, by a pass of its own.
        total: Any = 0.0
        for group, (params, grads, x0s, sums, *_) in zip(self.param_groups, gathered, strict=True):
            settings = {key: group[key] for key in ("weight_decay", "maximize")}
            for p, *tensors in zip(params, grads, x0s, sums, strict=True):
                _, squares, _ = inner_products(p, *tensors, **settings)
                total = total + _summed([squares], _shards(p))[0]
        if isinstance(total, Tensor):
            found = torch.nan_to_num(total, nan=0.0, posinf=0.0)
            self.param_groups[0]["estimate"][2] = where(g_count > 0, g_squares, found)

    def _weights(self, group: Group, lr: Scalar, ks: list[Scalar], _betas: list[Tensor]) -> Weights:
        d, _, g_squares, g_count, _ = self._read()
        # eta_k = gamma_k d_k / G_k
        norm = square_root(g_squares / larger(g_count, 1.0))
        eta = group["eta"] = where(norm > 0, lr * d / where(norm > 0, norm, 1.0), 0.0)
        # beta_k = sqrt(k+1), lambda_k = eta_k sqrt(k+1)
        roots = square_roots(ks)
        return [eta * root for root in roots], roots

    def _new_products(self, count: int) -> list[Any]:
        return [[0.0, 0.0, 0.0] for _ in range(count)]

    def _observe(self, updated: list[Updated]) -> None:
        if not any(columns[0] for _, columns, _ in updated):
            return  # no parameter has a gradient
        d, r, g_squares, g_count, x0_squares = self._read()
        increment, h_squares, s_squares = self._sums(updated)
        finite = abs(increment) + h_squares + s_squares < math.inf
        # r_k = r_{k-1} + lambda_k <h_k, x_0 - x_k>
        r = where(finite, r + increment, r)
        # d_{k+1} = max(d_k, r_k / ||s_k||), within the growth rate
        moved = where(finite, s_squares, 0.0) > 0
        found = where(moved, r / square_root(where(moved, s_squares, 1.0)), 0.0)
        most = d * self.param_groups[0]["growth_rate"]
        d = larger(d, where(found > most, most, found))
        # G_{k+1}^2 = (||h_0||^2 + ... + ||h_k||^2) / (k + 1)
        counts = where(finite, h_squares, 0.0) > 0
        g_squares = where(counts, where(g_count > 0, g_squares, 0.0) + h_squares, g_squares)
        g_count = where(counts, g_count + 1.0, g_count)
        numbers = [d, r, g_squares, g_count, x0_squares]
        estimate = self.param_groups[0]["estimate"]
        estimate.copy_(torch.stack(numbers) if isinstance(d, Tensor) else estimate.new_tensor(numbers))
        for group in self.param_groups:
            group["d"] = d

    def _sums(self, updated: list[Updated]) -> list[Any]:
        """Return lambda_k <h_k, x_0 - x_k>, ||h_k||^2 and ||s_k||^2 over all groups and processes.

        Groups may have different step sizes, a times the largest one. This is MDA with one step size for
        x / sqrt(a), whose gradient is sqrt(a) h and whose sum is s / sqrt(a).
        """
        tensors = keeps_tensors(self.param_groups[0])
        lrs = [group["lr"] if tensors else float(group["lr"]) for group, _, _ in updated]
        top = functools.reduce(larger, lrs)
        rows: list[tuple[Any, ...]] = []  # a, its inverse, the parameter and lambda_k
        products: list[list[Scalar]] = []
        for lr, (_, columns, idle_sums) in zip(lrs, updated, strict=True):
            params, *_, lambdas, _, _, found = columns
            a = lr / where(top > 0, top, 1.0)
            inverse = where(lr > 0, 1 / where(lr > 0, a, 1.0), 1.0)  # lr = 0 keeps s, and its share in ||s||
            rows += [(a, inverse, p, lam) for p, lam in zip(params, lambdas, strict=True)]
            rows += [(a, inverse, s, 0.0) for s in idle_sums]
            products += [*found, *([0.0, 0.0, squared_norm(s)] for s in idle_sums)]
        sums: dict[Any, list[Any]] = {}
        numbers: list[Any] = products if tensors else _floats(products)
        for (a, inverse, p, lam), (hd, hh, ss) in zip(rows, numbers, strict=True):
            total = sums.setdefault(_shards(p), [0.0, 0.0, 0.0])
            total[0] += inverse * lam * hd
            total[1] += a * hh
            total[2] += inverse * ss
        totals = [_summed(total, shards) for shards, total in sums.items()]
        return [sum(column) for column in zip(*totals, strict=True)]

    @torch.no_grad()
    def reset_anchor(self) -> None:
        """Restart the method and its estimate at the current parameters: x0 = x, s = 0, k = 0, d = d_0."""
        self.param_groups[0]["estimate"].zero_()
        super().reset_anchor()


def _floats(products: list[list[Scalar]]) -> list[list[float]]:
    """Return inner products as floats, waiting for a device once."""
    tensors = [v for row in products for v in row if isinstance(v, Tensor)]
    values = iter(torch.stack([v.to(tensors[0].device) for v in tensors]).tolist() if tensors else ())
    return [[next(values) if isinstance(v, Tensor) else v for v in row] for row in products]


def _shards(p: Any) -> tuple[Any, ...]:
    """Return the device and the process groups over which a parameter is sharded; () if it is not."""
    places = enumerate(getattr(p, "placements", ()))
    groups = [p.device_mesh.get_group(i) for i, place in places if place.is_shard()]
    return (p.device, *groups) if groups else ()


def _summed(numbers: list[Any], shards: tuple[Any, ...]) -> list[Any]:
    """Sum numbers over the processes that hold the shards."""
    if not shards:
        return numbers
    device, *groups = shards
    tensors = [torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers]
    total = torch.stack(tensors)
    for group in groups:
        dist.all_reduce(total, group=group)
    return list(total.unbind()) if isinstance(numbers[0], Tensor) else total.tolist()
