"""Dithered rounding of half-precision parameters: unbiased on average, deterministic, stateless.

A step computes y = lerp(x, x_0, c) - (c / beta_k) s in float32 and rounds it to the parameter's dtype.
Rounded to nearest, x would not move while c |z - x| is below half a unit in the last place (ulp). Let y lie
between two representable neighbours, a fraction f of the way from the one nearer to zero to the other. By
dithered rounding x becomes the other one if

    f + (1 - c^2) d_k >= 1/2,    -1/2 < d_k < 1/2

with d_k spread evenly over its interval. At c = 1 there is no average to follow, and y is rounded to nearest.

d_k is a hash of k and of the upper 16 bits of s (two kernels may differ in the lower ones): a resumed or a
sharded run gives the same bits. A representable y (f = 0) never changes, so a zero step changes nothing.
Below float16's normal numbers (6e-5) its spacing is 6e-8, and the last conversion rounds to nearest.
"""

from typing import Any

import torch
from torch import Tensor

FRACTION_BITS = {torch.bfloat16: 7, torch.float16: 10}
_SIGN_AND_EXPONENT = -0x800000  # the bits of a float32 that are not its 23 fraction bits
_MIX, _MIX_AGAIN = 0x9E3779B1, 0x85EBCA6B  # odd constants of well-known hash functions


@torch.no_grad()
def round_(y: Tensor, s: Tensor, dtype: torch.dtype, k: Any, c: Any) -> None:
    """Round the float32 tensor y in place to values that `dtype` can represent; `k` is k + 1."""
    bits = FRACTION_BITS[dtype]
    exact = y.clone() if isinstance(c, Tensor) else None
    # d_k = h / 2^(23 - bits), h odd. Functions, not operators: `>>` returns a sharded tensor unchanged.
    h = torch.bitwise_right_shift(s.to(torch.float32).view(torch.int32), 16).bitwise_xor_(_hash(k, s.device))
    h.mul_(_as_int32(_MIX)).bitwise_right_shift_(9 + bits).bitwise_or_(1)
    # Add (1/2 + (1 - c^2) d_k) ulp(y), then clear the fraction bits that dtype does not have.
    scale = (1 - c * c) * 2.0**-23
    offset = h.to(torch.float32).mul_(scale.to(y.device, y.dtype) if isinstance(scale, Tensor) else scale)
    offset.add_(2.0 ** -(bits + 1))
    y.addcmul_(torch.bitwise_and(y.view(torch.int32), _SIGN_AND_EXPONENT).view(torch.float32), offset)
    y.view(torch.int32).bitwise_and_(-(1 << (23 - bits)))
    if exact is not None:
        y.copy_(torch.where(c.to(y.device) < 1, y, exact))


def _hash(k: Any, device: torch.device) -> Any:
    """32 bits from k that differ unpredictably between steps; a tensor if k is one."""
    number: Any = k.to(device, torch.int64) if isinstance(k, Tensor) else int(k)
    bits = (number * _MIX) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * _MIX_AGAIN) & 0xFFFFFFFF
    return bits.to(torch.int32) if isinstance(k, Tensor) else _as_int32(bits)


def _as_int32(bits: int) -> int:
    """Reinterpret 32 bits as a signed integer."""
    return (bits + 0x80000000) % 0x100000000 - 0x80000000
