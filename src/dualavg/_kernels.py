"""The update of the dual averaging family, written once for each way of executing it.

Every method of the family is the same three lines for a parameter x with anchor x_0:

    s_k     = s_{k-1} + lambda_k (g_k + weight_decay x_k)
    z_{k+1} = x_0 - s_k / beta_k
    x_{k+1} = (1 - c) x_k + c z_{k+1}

and differs from its sisters in lambda_k, beta_k and c alone, which the optimizers hand in.

z is never stored. The last two lines are computed as lerp(x, x_0, c) - (c / beta_k) s_k: in place, without
a temporary, and exact where it must be: while s = 0 and x = x_0, torch's lerp returns x bit for bit, which
(1 - c) x + c x_0 does not. How a parameter in half precision is rounded stands in _rounding.py.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach

from dualavg import _fused
from dualavg._fused import PLAIN, lie_alike
from dualavg._rounding import DIGITS, round_

Scalar: TypeAlias = float | Tensor

_PIECE, _PIECE_ELSEWHERE = 1 << 17, 1 << 24  # elements with copies that a CPU's cache holds; a GPU's share
_PIECE_OF_TWO_PASSES = 1 << 20  # elements that are still in a CPU's last cache when the second pass comes
_SMALL = 1 << 15  # elements that torch's own operators take in one thread
_LEAST = 1e-8  # of lambda: 1 - (1 - lambda) is lambda to float32's precision above it


def update(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
    ks: Sequence[Scalar],
    *,
    c: Scalar,
    weight_decay: float,
    maximize: bool,
    foreach: bool | None,
    fused: bool | None,
    differentiable: bool,
    has_sparse_grad: bool,
) -> None:
    """Advance every parameter by one step, in place, by the kernel that fits.

    `lambdas`, `betas` and `ks`, which is k + 1, hold one number a parameter: floats, or 0-dim tensors where
    the step must not wait for the device or must be traced.
    """
    how: dict[str, Any] = {"weight_decay": weight_decay, "maximize": bool(maximize)}
    compiling = torch.compiler.is_compiling()  # what is being compiled gets fused anyway
    takers: list[Callable[..., list[int]]] = []
    if fused and not compiling and not _fused.lie_apart([*params, *sums], grads):
        paths: dict[str, Any] = {"foreach": foreach, "fused": fused, "differentiable": differentiable}
        for row in zip(params, grads, x0s, sums, lambdas, betas, ks, strict=True):
            x, g, x0, s, lam, beta, k = ([part] for part in row)  # in memory that they share, one by one
            update(x, g, x0, s, lam, beta, k, c=c, has_sparse_grad=has_sparse_grad, **how, **paths)
        return
    if fused and not compiling:
        tensors = isinstance(c, Tensor) or isinstance(lambdas[0], Tensor)
        if tensors and all(p.is_cpu for p in params):  # where reading a number costs nothing
            lambdas, betas, ks = ([float(a) for a in numbers] for numbers in (lambdas, betas, ks))
            c, tensors = float(c), False
        takers = [_take_fused] if has_sparse_grad or tensors else [_fused.update, _take_fused]
    elif fused is foreach is None and not (compiling or differentiable or has_sparse_grad):
        takers = [_two_passes]
    for take in takers:
        rest = take(params, grads, x0s, sums, lambdas, betas, ks, c=c, **how)
        if not rest:
            return
        params, grads, x0s, sums = ([part[i] for i in rest] for part in (params, grads, x0s, sums))
        lambdas, betas, ks = ([part[i] for i in rest] for part in (lambdas, betas, ks))
    if foreach is None:
        foreach = fused or _default_to_fused_or_foreach(params, differentiable, use_fused=False)[1]
    # A sparse gradient has no multi-tensor kernel.
    kernel = _multi_tensor if foreach and not has_sparse_grad else _single_tensor
    rows = (params, grads, x0s, sums, lambdas, betas, ks)
    whole = compiling or differentiable or has_sparse_grad
    for part in [rows] if whole else _parts(*rows):
        kernel(*part, c=c, differentiable=differentiable, **how)


def _parts(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
    ks: Sequence[Scalar],
) -> Iterator[tuple[list[Any], ...]]:
    """What a kernel gets at a time: all that is of one dtype, then the rest, large tensors in pieces.

    A kernel makes copies in float32 of what is in half precision: those of a piece take next to no memory,
    and a CPU's cache holds them, which takes a quarter of the time.
    """
    rows = list(zip(params, grads, x0s, sums, lambdas, betas, ks, strict=True))
    mixed = [row for row in rows if len({t.dtype for t in row[:4]}) > 1]
    if len(mixed) < len(rows):
        alike = [row for row in rows if len({t.dtype for t in row[:4]}) == 1]
        yield tuple(map(list, zip(*alike, strict=True)))
    yield from _batches(mixed, lambda x: _PIECE if x.is_cpu else _PIECE_ELSEWHERE)


def _batches(rows: list[Any], most: Callable[[Tensor], int]) -> Iterator[tuple[list[Any], ...]]:
    """Rows of x, g, x_0, s and numbers, as columns: so many elements at a time, large tensors in pieces."""
    batch: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        x = row[0]
        n, limit = x.numel(), most(x)
        pieces: list[Any] = [(n, row)]
        if n > limit and all(map(_is_flat, row[:4])):
            parts = zip(*(torch.split(t.detach().view(-1), limit) for t in row[:4]), strict=True)
            pieces = [(part[0].numel(), (*part, *row[4:])) for part in parts]
        for n, piece in pieces:
            if batch and size + n > limit:
                yield tuple(map(list, zip(*batch, strict=True)))
                batch, size = [], 0
            batch.append(piece)
            size += n
    if batch:
        yield tuple(map(list, zip(*batch, strict=True)))


def _is_flat(t: Tensor) -> bool:
    return type(t) in PLAIN and t.is_contiguous() and not t.is_neg()


def _take_fused(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
    ks: Sequence[Scalar],
    **how: Any,
) -> list[int]:
    """Advance what can be in one pass over memory on any device, complex numbers too; return the rest."""
    rest = [i for i, grad in enumerate(grads) if grad.is_sparse]
    devices: dict[torch.device, list[int]] = defaultdict(list)
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        if not grad.is_sparse:
            devices[param.device].append(i)
    for device, mine in devices.items():
        xs, starts, ss = ([as_real(part[i]) for i in mine] for part in (params, x0s, sums))
        gs = [as_real(grads[i].resolve_conj()) for i in mine]
        compiled = partial(_fused.update_compiled, _single_tensor)
        update = _fused.update if device.type == "cpu" else compiled
        numbers = ([part[i] for i in mine] for part in (lambdas, betas, ks))
        left = update(xs, gs, starts, ss, *numbers, **how)
        rest += [mine[i] for i in left]
    return sorted(rest)


def _two_passes(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
    _: Sequence[Scalar],
    *,
    c: Any,
    weight_decay: float,
    maximize: bool,
) -> list[int]:
    """Let torch's fused SGD do the sum and the step from it in one pass over memory; return what it cannot.

    With momentum 1, dampening 1 - lambda_k and lr c / beta_k its buffer is s, and what is left is the way to
    x_0. Large tensors go in pieces, so that the second pass finds in the cache what the first has read. It
    takes float32 on CPUs. Small tensors are in a cache anyway, and are spared its threads, which take
    a thousand times as long where other programs have the cores.
    """
    found: dict[Any, list[tuple[Tensor, ...]]] = {}
    rest: list[int] = []
    places: list[int] = []
    for i, (x, g, x0, s, lam, beta) in enumerate(zip(params, grads, x0s, sums, lambdas, betas, strict=True)):
        if (
            x.dtype is g.dtype is x0.dtype is s.dtype is torch.float32
            and x.is_cpu
            and type(x) in PLAIN
            and type(g) is type(s) is Tensor
            and not (x.is_neg() or g.is_neg())
            and (address := g.data_ptr())  # there, and not what the first pass changes
            and abs(address - (start := x.data_ptr())) >= 4 * (n := x.numel())
            and ((x.is_contiguous() and g.is_contiguous() and s.is_contiguous()) or lie_alike(x, g, s))
            and not isinstance(lam, Tensor)
            and lam > _LEAST
        ):
            found.setdefault((lam, beta, n < _SMALL), []).append((x, g, x0, s))
            places += (address, start)
        else:
            rest.append(i)
    if len(set(places)) < len(places) or (rest and not _fused.lie_apart([*params, *sums], grads)):
        return list(range(len(params)))  # in memory that they share, one after the other
    for (lam, beta, small), rows in found.items():
        columns: Any = [map(list, zip(*rows, strict=True))]
        if not small:  # all of them now: between two passes, Python's own things are not in the caches
            columns = list(_batches(rows, lambda _: _PIECE_OF_TWO_PASSES))
        for xs, gs, starts, ss in columns:
            if weight_decay != 0:
                torch._foreach_add_(ss, xs, alpha=lam * weight_decay)
            torch._foreach_lerp_(xs, starts, c)
            if small:
                torch._foreach_add_(ss, gs, alpha=-lam if maximize else lam)
                torch._foreach_add_(xs, ss, alpha=-(c / beta))
                continue
            torch._fused_sgd_(
                xs,
                gs,
                ss,
                weight_decay=0.0,
                momentum=1.0,
                lr=c / beta,
                dampening=1 - lam,
                nesterov=False,
                maximize=maximize,
                is_first_step=False,
            )
    return rest


def _single_tensor(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
    ks: Sequence[Scalar],
    *,
    c: Scalar,
    weight_decay: float,
    maximize: bool,
    differentiable: bool,
) -> None:
    # Under `differentiable`, what autograd may save is cloned: x and s are changed in place at every step.
    for x, g, x0, s, lam, beta, k in zip(params, grads, x0s, sums, lambdas, betas, ks, strict=True):
        total = s
        if x.is_complex():
            x, g, x0, s = as_real(x), as_real(g.resolve_conj()), as_real(x0), as_real(s)  # noqa: PLW2901

        # s_k = s_{k-1} + lambda_k (g_k + weight_decay x_k), each term straight into the sum
        if weight_decay != 0:
            _add_scaled_(s, x.clone() if differentiable else x, lam * weight_decay)
        _add_scaled_(total if g.is_sparse else s, g, -lam if maximize else lam)

        # x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k, in the wider dtype of x and s, then rounded
        dtype = s.dtype if x.dtype == s.dtype else torch.promote_types(x.dtype, s.dtype)
        in_place = x.dtype == dtype and not differentiable
        y = x if in_place else x.to(dtype, copy=True)
        y.lerp_(x0 if x0.dtype == dtype else x0.to(dtype), like(c, y))
        _add_scaled_(y, s.clone() if differentiable else s, -(c / beta))
        if _takes_turns(x, y, c):
            rounded = y.detach().clone() if differentiable else y
            round_(rounded, s.detach(), x.dtype, k, c)
            if differentiable:
                y.add_(rounded - y.detach())  # to autograd, a constant
        if not in_place:
            x.copy_(y)


def _multi_tensor(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
    ks: Sequence[Scalar],
    *,
    c: Scalar,
    weight_decay: float,
    maximize: bool,
    differentiable: bool,  # noqa: ARG001 - refused with foreach when the group is made
) -> None:
    for bucket in _buckets(params, x0s, sums, lambdas, betas):
        xs = [as_real(params[i]) for i in bucket]
        gs = [as_real(grads[i].resolve_conj()) for i in bucket]
        ss = [as_real(sums[i]) for i in bucket]
        lam = [lambdas[i] for i in bucket]
        pull = [-(c / betas[i]) for i in bucket]

        # s_k = s_{k-1} + lambda_k (g_k + weight_decay x_k)
        if weight_decay != 0:
            _foreach_add_scaled_(ss, xs, [a * weight_decay for a in lam])
        _foreach_add_scaled_(ss, gs, [-a for a in lam] if maximize else lam)

        # x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k, in the wider dtype of x and s, then rounded
        dtype = torch.promote_types(xs[0].dtype, ss[0].dtype)
        in_place = xs[0].dtype == dtype
        ys = xs if in_place else [x.to(dtype) for x in xs]
        ends = [as_real(x0s[i]).to(dtype) for i in bucket]
        if isinstance(c, Tensor):
            torch._foreach_lerp_(ys, ends, [like(c, y) for y in ys])
        else:
            torch._foreach_lerp_(ys, ends, c)
        _foreach_add_scaled_(ys, ss, pull)
        for x, y, s, i in zip(xs, ys, ss, bucket, strict=True):
            if _takes_turns(x, y, c):
                round_(y, s, x.dtype, ks[i], c)
            if not in_place:
                x.copy_(y)  # torch's multi-tensor copy takes no sharded tensors


def _takes_turns(x: Tensor, y: Tensor, c: Scalar) -> bool:
    """Whether x is y in half precision, and an average."""
    return x.dtype in DIGITS and y.dtype == torch.float32 and (isinstance(c, Tensor) or c < 1)


def _buckets(
    params: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Scalar],
    betas: Sequence[Scalar],
) -> list[list[int]]:
    """Indices of the parameters that one multi-tensor call can take: one device, one dtype each, one k."""
    found: dict[object, list[int]] = defaultdict(list)
    for i, (p, x0, s, lam, beta) in enumerate(zip(params, x0s, sums, lambdas, betas, strict=True)):
        k = None if isinstance(lam, Tensor) or isinstance(beta, Tensor) else (lam, beta)
        found[p.device, p.dtype, x0.dtype, s.dtype, k].append(i)
    return list(found.values())


def _add_scaled_(out: Tensor, t: Tensor, a: Scalar) -> None:
    """Out += a t, for any mix of dtypes and layouts."""
    if isinstance(a, Tensor):
        out.add_(t.to(out.dtype) * like(a, out))
    else:
        out.add_(t, alpha=a)


def _foreach_add_scaled_(outs: list[Tensor], ts: list[Tensor], a: Sequence[Scalar]) -> None:
    """Outs += a ts, where a is either one number for all (a bucket has one k) or tensors."""
    if isinstance(a[0], Tensor):
        scaled = torch._foreach_mul(
            [t.to(o.dtype) for t, o in zip(ts, outs, strict=True)],
            [like(b, o) for b, o in zip(a, outs, strict=True)],
        )
        torch._foreach_add_(outs, scaled)
    else:
        torch._foreach_add_(outs, ts, alpha=a[0])


def like(a: Scalar, t: Tensor) -> Any:
    """A 0-dim tensor where and as `t` is; a float as it is."""
    return a.to(t.device, t.dtype) if isinstance(a, Tensor) else a


def as_real(t: Tensor) -> Tensor:
    """The view that multi-tensor and compiled kernels can take; a sparse tensor has none and needs none."""
    return torch.view_as_real(t) if t.is_complex() and not t.is_sparse else t
