"""How a parameter in half precision is rounded: no step is too small for it, nothing has to be remembered.

A step computes y = lerp(x, x_0, c) - (c / beta_k) s in float32, and x is y in two bytes. Rounded to the
nearest, x would stand still wherever c |z - x| is less than half a unit in the last place: up to 1/(2c) units
away from z. So it takes turns: with y between two neighbours, f of the way from the one nearer to zero to the
other, x is the other where

    f + (1 - c^2) d_k >= 1/2,    -1/2 < d_k < 1/2

with d_k scattered over its interval as if by chance: x is right on average, and follows the average of z. At
c = 1 there is no average to follow, and y is rounded to the nearest.

d_k is a hash of k and of the upper half of s, so that nothing is drawn and nothing is kept: the same step
gives the same bits, in a run that is resumed and in one whose parameters are parted among processes. Elements
that differ in s differ in d_k, but not those that differ in its last digits alone, as those of two paths do.
A gradient that comes again finds another k. A number that two bytes hold, f = 0, stays what it is, whatever
d_k: a step of nothing changes nothing.
"""

from typing import Any

import torch
from torch import Tensor

DIGITS = {torch.bfloat16: 7, torch.float16: 10}  # of the fraction, of float32's 23
SIGN_AND_POWER = -0x800000  # the bits of a float32 that are not its fraction
MIX, MIX_AGAIN = 0x9E3779B1, 0x85EBCA6B  # odd, their bits at random
_SMALLEST = 2.0**-14  # of float16's normal numbers: below, its numbers come no closer


@torch.no_grad()
def round_(y: Tensor, s: Tensor, dtype: torch.dtype, k: Any, c: Any) -> None:
    """Round a float32 tensor, in place, to numbers that `dtype` holds; `k` is k + 1."""
    digits = DIGITS[dtype]
    exact = y.clone() if isinstance(c, Tensor) else None
    if dtype == torch.float16:
        shift = torch.where(y.abs() < _SMALLEST, torch.full_like(y, _SMALLEST).copysign_(y), 0.0)
        y.add_(shift)
    # d_k = h / 2^16, h odd. Functions, not operators: `>>` of a sharded tensor gives the tensor itself.
    h = torch.bitwise_right_shift(s.to(torch.float32).view(torch.int32), 16).bitwise_xor_(mixed(k, s.device))
    h.mul_(_signed(MIX)).bitwise_right_shift_(16).bitwise_or_(1)
    # (1/2 + (1 - c^2) d_k) ulp(y) is added, then all that is beyond the digits is cut off
    scale = (1 - c * c) * 2.0 ** -(16 + digits)
    added = h.to(torch.float32).mul_(scale.to(y.device, y.dtype) if isinstance(scale, Tensor) else scale)
    added.add_(2.0 ** -(digits + 1))
    if dtype == torch.float16:
        added.clamp_(max=2.0**-digits - 2.0**-23)  # float32 holds 13 digits more, d_k has 16
    power = torch.bitwise_and(y.view(torch.int32), SIGN_AND_POWER).view(torch.float32)
    y.addcmul_(power, added)
    y.view(torch.int32).bitwise_and_(-(1 << (23 - digits)))
    if dtype == torch.float16:
        y.sub_(shift)
    if exact is not None:
        y.copy_(torch.where(c.to(y.device) < 1, y, exact))


def mixed(k: Any, device: torch.device) -> Any:
    """32 bits made of k, none of which tells of the next k's; a tensor's as a tensor."""
    number: Any = k.to(device, torch.int64) if isinstance(k, Tensor) else int(k)
    bits = (number * MIX) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * MIX_AGAIN) & 0xFFFFFFFF
    return bits.to(torch.int32) if isinstance(k, Tensor) else _signed(bits)


def _signed(bits: int) -> int:
    """The last 32 bits, as torch.int32 reads them."""
    return (bits + 0x80000000) % 0x100000000 - 0x80000000
