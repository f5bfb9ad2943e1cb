"""How a parameter in half precision is rounded: no step is too small for it, nothing has to be remembered.

A step computes y = lerp(x, x_0, c) - (c / beta_k) s in float32, and x is y in two bytes. Rounded to the
nearest, x would stand still wherever c |z - x| is less than half a unit in the last place: up to 1/(2c) units
away from z. So it takes turns: with y between two neighbours, f of the way from the one nearer to zero to the
other, x is the other where

    f + (1 - c^2) d_k >= 1/2,    -1/2 < d_k < 1/2

with d_k from a sequence that visits its interval evenly: the multiples of the golden ratio modulo 1, begun
somewhere else for each value of x_0. The errors of successive steps cancel, and x follows the exact average
to about half a unit. At c = 1 there is no average to follow, and y is rounded to the nearest.

A number that two bytes hold, f = 0, stays what it is, whatever d_k: a step of nothing changes nothing. No
chance, no state: a run that is resumed, or whose parameters are parted among processes, rounds alike.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

DIGITS = {torch.bfloat16: 7, torch.float16: 10}  # of the fraction, of float32's 23
STRIDE, SPREAD = 40502, 27146  # 2^16 times golden ratio and root of two: even, so that d_k is never +-1/2
POWER = -0x800000  # the bits of a float32 that are its sign and power of two


@torch.no_grad()
def round_(ys: list[Tensor], x0s: Sequence[Tensor], dtype: torch.dtype, ks: Sequence[Any], c: Any) -> None:
    """Round float32 tensors to numbers that `dtype` holds; `ks` holds k + 1: the same for all, or tensors."""
    digits = DIGITS[dtype]
    # d_k = h / 2^16 with h odd, made of the sixteen bits of x_0 and of k
    hs = torch._foreach_mul([x0.to(dtype).view(torch.int16) for x0 in x0s], SPREAD)
    if isinstance(ks[0], Tensor):
        phases = [
            (k.to(torch.int32) * STRIDE + 1).to(h.device, torch.int16) for k, h in zip(ks, hs, strict=True)
        ]
        torch._foreach_add_(hs, phases)
    else:
        torch._foreach_add_(hs, _signed(int(ks[0]) * STRIDE + 1))
    # (1/2 + (1 - c^2) d_k) 2^-digits, times y's power of two: what is added before the rest is cut off
    added = [h.to(torch.float32) for h in hs]
    scale = (1 - c * c) * 2.0 ** -(16 + digits)
    if isinstance(scale, Tensor):
        torch._foreach_mul_(added, [scale.to(a.device, a.dtype) for a in added])
    else:
        torch._foreach_mul_(added, scale)
    torch._foreach_add_(added, 2.0 ** -(digits + 1))
    powers = [(y.view(torch.int32) & POWER).view(torch.float32) for y in ys]
    torch._foreach_addcmul_(ys, powers, added)
    for y in ys:
        y.view(torch.int32).bitwise_and_(-(1 << (23 - digits)))


def _signed(bits: int) -> int:
    """The last sixteen bits, as torch.int16 reads them."""
    return (bits + 0x8000) % 0x10000 - 0x8000
