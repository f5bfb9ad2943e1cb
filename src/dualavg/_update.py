"""The update of the dual averaging family: for-loop and multi-tensor kernels, and which kernel runs.

Every method of the family is the same three lines for a parameter x with anchor x_0:

    s_k     = s_{k-1} + lambda_k (g_k + weight_decay x_k)
    z_{k+1} = x_0 - s_k / beta_k
    x_{k+1} = (1 - c) x_k + c z_{k+1}

The methods differ in lambda_k, beta_k and c only, which the optimizers pass in.

z is never stored. The last two lines are computed as lerp(x, x_0, c) - (c / beta_k) s_k: in place, without a
temporary, and exact where it matters. While s = 0 and x = x_0, torch's lerp returns x bit for bit, which
(1 - c) x + c x_0 does not. Half-precision parameters are rounded as described in _rounding.py.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach

from dualavg import _fused
from dualavg._fused import Columns
from dualavg._rounding import FRACTION_BITS, round_
from dualavg._scalars import Scalar, count_steps
from dualavg._validation import SUM_DTYPES

_PIECE = 1 << 17  # elements whose float32 copies stay in a CPU's cache
_ROW = 1 << 12  # elements that one thread sums


def update(
    columns: Columns,
    *,
    c: Scalar,
    weight_decay: float,
    maximize: bool,
    foreach: bool | None,
    fused: bool | None,
    differentiable: bool,
) -> None:
    """Advance every parameter and its state by one step, in place.

    Numbers are floats, or 0-dim tensors if the step is compiled or must not wait for a device. A column of
    lists, instead of None, is filled with the products of `inner_products`.
    """
    params, grads, *_, ks, _ = columns
    numbers: dict[str, Any] = {"c": c, "weight_decay": weight_decay, "maximize": bool(maximize)}
    if torch.compiler.is_compiling() or isinstance(ks[0], Tensor):
        fused = False  # Inductor fuses operations by itself; the operator takes plain numbers
    if fused and _fused.is_available(params[0].device):
        columns = _fused.step(columns, **numbers)  # what does not fit the operator: by the for-loop
        if not columns:
            return
    elif foreach is None:
        # The for-loop on CPUs, as in torch.optim: each operation finds the tensor in the cache.
        foreach = _default_to_fused_or_foreach(params, differentiable, use_fused=False)[1]
    _x, _g, _x0, _s, steps, *_ = columns
    count_steps(steps)
    has_sparse_grad = any(grad.is_sparse for grad in grads)  # torch has no multi-tensor kernel for these
    if foreach and not has_sparse_grad:
        _multi_tensor(columns, **numbers)
    else:
        _single_tensor(columns, **numbers, differentiable=differentiable)


def _single_tensor(
    columns: Columns, *, c: Scalar, weight_decay: float, maximize: bool, differentiable: bool
) -> None:
    # Under `differentiable`, tensors that autograd may save are cloned: x and s change in place.
    for x, g, x0, s, _, lam, beta, k, products in zip(*columns, strict=True):
        s_complex = s
        if x.is_complex():
            x, g, x0, s = as_real(x), as_real(g), as_real(x0), as_real(s)  # noqa: PLW2901

        # s_k = s_{k-1} + lambda_k (g_k + weight_decay x_k), term by term
        if weight_decay != 0:
            _add_scaled_(s, x.clone() if differentiable else x, lam * weight_decay)
        _add_scaled_(s_complex if g.is_sparse else s, g, -lam if maximize else lam)
        if products is not None:
            products[:] = inner_products(x, g, x0, s, weight_decay=weight_decay, maximize=maximize)

        # x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k
        if x.dtype == x0.dtype == s.dtype and not differentiable:
            x.lerp_(x0, like(c, x))
            _add_scaled_(x, s, -(c / beta))
            continue
        # The same in the wider dtype of x and s, then rounded
        for x_, x0_, s_ in [(x, x0, s)] if differentiable else _pieces(x, x0, s):
            y = x_.to(torch.promote_types(x.dtype, s.dtype), copy=True)
            y.lerp_(x0_.to(y.dtype), like(c, y))
            _add_scaled_(y, s_.clone() if differentiable else s_, -(c / beta))
            if _needs_dither(x, y, c):
                rounded = y.detach().clone()
                round_(rounded, s_.detach(), x.dtype, k, c)
                y = y + (rounded - y.detach()) if differentiable else rounded  # autograd sees a constant
            x_.copy_(y)


def _multi_tensor(columns: Columns, *, c: Scalar, weight_decay: float, maximize: bool) -> None:
    for bucket in _buckets(columns):
        selected = ([column[i] for i in bucket] for column in columns)
        params, grads, x0s, sums, _, lams, betas, ks, products = selected
        xs, ss, starts = ([as_real(t) for t in column] for column in (params, sums, x0s))
        gs = [as_real(g) for g in grads]

        # s_k = s_{k-1} + lambda_k (g_k + weight_decay x_k)
        if weight_decay != 0:
            _foreach_add_scaled_(ss, xs, [lam * weight_decay for lam in lams])
        _foreach_add_scaled_(ss, gs, [-lam for lam in lams] if maximize else lams)
        for found, *tensors in zip(products, xs, gs, starts, ss, strict=True):
            if found is not None:
                found[:] = inner_products(*tensors, weight_decay=weight_decay, maximize=maximize)

        # x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k, in the wider dtype of x and s, then rounded
        dtype = torch.promote_types(xs[0].dtype, ss[0].dtype)
        in_place = xs[0].dtype == dtype
        ys = xs if in_place else [x.to(dtype) for x in xs]
        anchors = [x0.to(dtype) for x0 in starts]
        torch._foreach_lerp_(ys, anchors, [like(c, y) for y in ys] if isinstance(c, Tensor) else c)
        _foreach_add_scaled_(ys, ss, [-(c / beta) for beta in betas])
        for x, y, s, k in zip(xs, ys, ss, ks, strict=True):
            if _needs_dither(x, y, c):
                round_(y, s, x.dtype, k, c)
            if not in_place:
                x.copy_(y)  # torch's multi-tensor copy does not support sharded tensors


@torch.no_grad()
def inner_products(
    x: Tensor, g: Tensor, x0: Tensor, s: Tensor, *, weight_decay: float, maximize: bool
) -> tuple[Any, Any, Any]:
    """<h, x_0 - x>, ||h||^2 and ||s||^2 of h = g + weight_decay x, with -g to maximize.

    Products have the dtype of s and are summed in float64, in the same order for any number of threads. Of a
    sharded tensor, they are those of the own shard.
    """
    x, g, x0, s = (as_real(_local(t)) for t in (x, g, x0, s))
    if g.is_sparse and weight_decay != 0:  # h is not sparse
        g = as_real(g.to_dense())
    elif g.is_sparse:
        g = g.coalesce()
        index, g = tuple(g.indices()), as_real(g.values())
        x, x0 = x[index], x0[index]
    sign = -1.0 if maximize else 1.0
    hd: Any = 0.0
    hh: Any = 0.0
    for x_, g_, x0_ in _pieces(x, g, x0):
        wide_x, h = x_.to(s.dtype), g_.to(s.dtype)
        if weight_decay != 0:
            h = h.add(wide_x, alpha=sign * weight_decay)
        hd, hh = hd + _sum(h * (x0_.to(s.dtype) - wide_x)), hh + _sum(h * h)
    return sign * hd, hh, squared_norm(s)


def squared_norm(t: Tensor) -> Any:
    """||t||^2, of the own shard of a sharded tensor, in the dtype of sums."""
    t = as_real(_local(t.detach()))
    dtype = SUM_DTYPES.get(t.dtype, t.dtype)
    return sum(_sum(piece.to(dtype).square()) for (piece,) in _pieces(t))


def _sum(t: Tensor) -> Tensor:
    """Sum in float64. Threads share rows, never the sum of a row, so that their number changes nothing."""
    dtype = torch.float32 if t.device.type == "mps" else torch.float64
    if t.numel() <= _ROW or not t.is_cpu or torch.compiler.is_compiling():
        return t.sum(dtype=dtype)
    rows, rest = t.reshape(-1).tensor_split([t.numel() // _ROW * _ROW])
    return rows.view(-1, _ROW).sum(dim=1, dtype=dtype).sum() + rest.sum(dtype=dtype)


def _buckets(columns: Columns) -> list[list[int]]:
    """Group the indices of parameters that share device, dtypes, lambda_k and beta_k: one call for each."""
    buckets: dict[object, list[int]] = defaultdict(list)
    for i, (x, _, x0, s, _, lam, beta, *_) in enumerate(zip(*columns, strict=True)):
        weights = None if isinstance(lam, Tensor) or isinstance(beta, Tensor) else (lam, beta)
        buckets[x.device, x.dtype, x0.dtype, s.dtype, weights].append(i)
    return list(buckets.values())


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Split large tensors on a CPU: copies in another dtype are small then, and stay in the cache.

    This takes a quarter of the time for a large bfloat16 parameter.
    """
    if tensors[0].numel() <= _PIECE or torch.compiler.is_compiling() or not _fused.is_plain(tensors):
        return [tensors]
    if not all(t.is_cpu and t.is_contiguous() and not t.is_neg() for t in tensors):
        return [tensors]
    return zip(*(torch.split(t.detach().view(-1), _PIECE) for t in tensors), strict=True)


def _needs_dither(x: Tensor, y: Tensor, c: Scalar) -> bool:
    """Whether x is an average in half precision, computed in float32."""
    return x.dtype in FRACTION_BITS and y.dtype == torch.float32 and (isinstance(c, Tensor) or c < 1)


def _add_scaled_(out: Tensor, t: Tensor, a: Scalar) -> None:
    """Out += a t, for any mix of dtypes and layouts."""
    if isinstance(a, Tensor):
        out.add_(t.to(out.dtype) * like(a, out))
    else:
        out.add_(t, alpha=a)


def _foreach_add_scaled_(outs: list[Tensor], ts: list[Tensor], a: Sequence[Scalar]) -> None:
    """Outs += a ts. `a` holds tensors, or one float, the same for all of them."""
    if isinstance(a[0], Tensor):
        scaled = torch._foreach_mul(
            [t.to(o.dtype) for t, o in zip(ts, outs, strict=True)],
            [like(b, o) for b, o in zip(a, outs, strict=True)],
        )
        torch._foreach_add_(outs, scaled)
    else:
        torch._foreach_add_(outs, ts, alpha=a[0])


def _local(t: Any) -> Tensor:
    """Return the own shard of a sharded tensor; other tensors unchanged."""
    return t.to_local() if hasattr(t, "to_local") else t  # type: ignore[no-any-return]


def like(a: Scalar, t: Tensor) -> Any:
    """Move a 0-dim tensor to the device and dtype of `t`; return a float unchanged."""
    return a.to(t.device, t.dtype) if isinstance(a, Tensor) else a


def as_real(t: Tensor) -> Tensor:
    """View a complex tensor as real; torch has no such view of sparse tensors."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() and not t.is_sparse else t
