"""The update in one pass over memory: a small C++ kernel on CPUs, what torch.compile generates elsewhere.

A step of MDA reads g, x, x0 and s and writes x and s: 24 bytes a float32 parameter, and memory is the limit.
The for-loop goes over memory three times. The C++ file beside this one does the same operations in the same
order in one pass.
"""

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dualavg._compiler import library, say_once

_KINDS = {  # dtypes of parameter, gradient, anchor and sum, by the number that the kernel has for them
    (torch.float32, torch.float32, torch.float32, torch.float32): 0,
    (torch.float32, torch.float32, torch.bfloat16, torch.float32): 1,
    (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32): 2,
    (torch.float64, torch.float64, torch.float64, torch.float64): 3,
}


# A tensor of the list, as the kernel has it: x, g, x0, s, step, how many,
# decayed (NaN: nothing is), lambda, pull, k + 1.
_ROW = struct.Struct("5Pq4d")
KEPT = {"step", "x0", "s"}  # the state of a parameter whose step can be prepared
_MOST_COMPILED = 64  # lists of other shapes or settings that are compiled, one after the other, in a process
PLAIN = {Tensor, torch.nn.Parameter}  # a subclass may keep its numbers elsewhere, or nowhere


class Prepared:
    """A group's step, looked at and found in order, but not yet taken.

    The kernel does the looking: for a small network, asking tensors for their shapes, dtypes, strides and
    addresses from Python takes several times as long as the step.
    """

    __slots__ = ("grads", "kept", "kind", "ks", "params", "rows")

    def __init__(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        kept: list[Tensor],
        rows: Any,
        ks: list[Any],
        kind: int,
    ) -> None:
        self.params, self.grads, self.kept = params, grads, kept  # so that they stay alive
        self.rows, self.kind = rows, kind
        self.ks = ks  # k + 1 of each, or once if it is the same for all

    def take(
        self, lambdas: list[Any], betas: list[Any], *, c: Any, weight_decay: float, maximize: bool
    ) -> None:
        """Count the step and advance every parameter."""
        count, one = len(self.grads), len(self.ks) == 1
        how = (c, weight_decay, bool(maximize), torch.get_num_threads(), self.kind, one)
        numbers = _doubles(len(how) + 2 * len(self.ks)).pack(*how, *lambdas, *betas)
        increment_version(self.params)  # now, while what the kernel sweeps from the caches is still there
        library().dualavg_step(self.rows, count, numbers)


def prepare(params: list[Tensor], states: Any) -> Prepared | None:
    """Look at all that a step needs; None if any of it is out of the ordinary."""
    kernel = library()
    if kernel is None or torch._C._len_torch_function_stack():  # a mode may answer for the tensors
        return None
    grads: list[Tensor] = []
    kept: list[Tensor] = []
    room = len(params)
    rows = ctypes.create_string_buffer(_ROW.size * room + _doubles(1).size)
    try:
        kind = kernel.dualavg_prepare(params, room, states, grads, kept, rows)
    except (AttributeError, KeyError, TypeError, SystemError):  # parameters or state of another kind
        return None
    if kind < 0:
        return None
    count = len(grads)
    (k,) = _doubles(1).unpack_from(rows, _ROW.size * count)
    ks = [k]
    if math.isnan(k):  # there are several, or none
        ks = [row[-1] for row in _ROW.iter_unpack(rows.raw[: _ROW.size * count])]
    moving = params if count == len(params) else [p for p in params if p.grad is not None]
    return Prepared(moving, grads, kept, rows, ks, kind)


@functools.cache
def _doubles(count: int) -> struct.Struct:
    return struct.Struct(f"{count}d")


def update(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Any],
    betas: Sequence[Any],
    ks: Sequence[Any],
    *,
    c: Any,
    weight_decay: float,
    maximize: bool,
) -> list[int]:
    """Advance what the kernel can take, and return the indices of the rest.

    It takes dense real tensors on the CPU, of the dtypes above, whose elements lie in the same order.
    """
    kernel = library()
    if kernel is None:
        return list(range(len(params)))
    c, threads = float(c), torch.get_num_threads()
    found: dict[int, list[tuple[Tensor, tuple[Any, ...]]]] = {}
    rest, moved = [], []
    rows = zip(params, grads, x0s, sums, lambdas, betas, ks, strict=True)
    for i, (x, g, x0, s, lam, beta, k) in enumerate(rows):
        kind = _KINDS.get((x.dtype, g.dtype, x0.dtype, s.dtype))
        plain = x.is_contiguous() and x0.is_contiguous() and s.is_contiguous()
        if kind is None or not _in_order(x, g, x0, s) or not (plain or lie_alike(x, x0, s)):
            rest.append(i)
            continue
        decayed = lam * weight_decay if weight_decay != 0 else math.nan
        numbers = (x.numel(), decayed, -lam if maximize else lam, -(c / beta), k)
        row = (x.data_ptr(), g.data_ptr(), x0.data_ptr(), s.data_ptr(), 0, *numbers)
        if not (g.is_contiguous() if plain else g.stride() == x.stride()):
            # One such gradient is copied at a time, which takes the memory of one.
            alike = torch.empty_like(x, memory_format=torch.preserve_format).copy_(g)
            kernel.dualavg_update(_rows(1).pack(row[0], alike.data_ptr(), *row[2:]), 1, c, threads, kind)
        else:
            found.setdefault(kind, []).append((g, row))
        moved.append(x)
    increment_version(moved)
    for kind, mine in found.items():
        packed = _rows(len(mine)).pack(*(number for _, row in mine for number in row))
        if kernel.dualavg_are_apart(packed, len(mine), kind):
            kernel.dualavg_update(packed, len(mine), c, threads, kind)
            continue
        for g, row in mine:  # one after the other, as the for-loop would, the whole gradient before all else
            once = _rows(1).pack(*row)
            if not kernel.dualavg_are_apart(once, 1, kind):
                g = g.clone(memory_format=torch.preserve_format)  # noqa: PLW2901
                once = _rows(1).pack(row[0], g.data_ptr(), *row[2:])
            kernel.dualavg_update(once, 1, c, threads, kind)
    return rest


@functools.cache
def _rows(count: int) -> struct.Struct:
    return struct.Struct(_ROW.format * count)


def _in_order(x: Tensor, *others: Tensor) -> bool:
    """Whether all are what they seem: on the CPU, of one shape, numbers in memory to be read as they are."""
    return all(
        type(t) in PLAIN and t.is_cpu and t.shape == x.shape and not t.is_neg() and _is_there(t)
        for t in (x, *others)
    )


def _is_there(t: Tensor) -> bool:
    """Whether all of a tensor lies in its storage, which may have been freed, shrunk or never made."""
    if not t.numel():
        return True
    end = t.storage_offset() + _extent(t)
    return bool(t.data_ptr()) and end * t.itemsize <= t.untyped_storage().nbytes()


def _extent(t: Tensor) -> int:
    """How many elements lie between a tensor's first and its last, with both."""
    return 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))


def lie_apart(written: list[Tensor], read: list[Tensor]) -> bool:
    """Whether nothing that is written can lie in the memory of anything else of one group's step.

    One parameter alone is looked at when its turn comes.
    """
    if len(read) < 2:
        return True
    plain = [
        (t, among is written)
        for among in (written, read)
        for t in among
        if type(t) in PLAIN and t.layout is torch.strided and t.numel()
    ]
    if len({t.untyped_storage().data_ptr() for t, _ in plain}) == len(plain):
        return True
    starts = [(t.data_ptr(), t, is_written) for t, is_written in plain]
    spans = sorted((start, start + _extent(t) * t.itemsize, known) for start, t, known in starts if start)
    end = end_of_written = 0
    for start, stop, is_written in spans:
        if start < (end if is_written else end_of_written):
            return False
        end = max(end, stop)
        if is_written:
            end_of_written = max(end_of_written, stop)
    return True


def lie_alike(x: Tensor, *others: Tensor) -> bool:
    """Whether the elements of all lie in one block without gaps, in the same order."""
    expected, strides = 1, x.stride()
    for stride, size in sorted(zip(strides, x.shape, strict=True)):
        if size > 1 and stride != expected:
            return x.numel() == 0
        expected *= size
    return all(other.stride() == strides for other in others)


def update_compiled(
    for_loop: Callable[..., None],
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Any],
    betas: Sequence[Any],
    ks: Sequence[Any],
    *,
    c: Any,
    weight_decay: float,
    maximize: bool,
) -> list[int]:
    """Do the same by torch.compile, from the for-loop's own text, for devices that it generates code for.

    Numbers are handed over as tensors, so that a moving lr compiles nothing anew.
    """
    device, n = params[0].device, len(params)
    numbers = [*lambdas, *betas, *ks, c]
    if not any(isinstance(number, Tensor) for number in numbers):
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64
        numbers = list(torch.tensor(numbers, dtype=dtype, device=device).unbind())
    how = {"weight_decay": weight_decay, "maximize": maximize, "differentiable": False}
    parts = [numbers[i * n : (i + 1) * n] for i in range(3)]
    try:
        with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILED):
            _compiled(for_loop)(params, grads, x0s, sums, *parts, c=numbers[-1], **how)
    except _refusals() as error:  # raised before anything is changed
        reason = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0]
        say_once(f"torch.compile cannot generate it for {device.type} ({reason.rstrip('.')})")
        return list(range(n))
    return []


@functools.cache
def _refusals() -> tuple[type[Exception], ...]:
    """What torch.compile raises where it has no code for something, or has compiled enough."""
    errors = torch._dynamo.exc
    return errors.TorchDynamoException, errors.FailOnRecompileLimitHit


@functools.cache
def _compiled(for_loop: Callable[..., None]) -> Any:
    return torch.compile(for_loop, fullgraph=True, dynamic=False)
