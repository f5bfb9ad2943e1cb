"""Tensors of every shape and stride that a parameter may have, and how far two of them are apart."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

ULP = {torch.float32: 2**-23, torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float64: 2**-52}


def ulps(a: Tensor, b: Tensor, *terms: Tensor) -> float:
    """Largest distance in units of the last place of the largest: of both, or of what they are sums of."""
    if a.numel() == 0:
        return 0.0
    size = torch.stack([t.detach().abs().double() for t in (a, b, *terms)]).amax(0).clamp(min=1e-30)
    unit = 2.0 ** size.log2().floor() * ULP[a.dtype]
    return float(((a.double() - b.double()).abs() / unit).max())


def layouts() -> dict[str, Any]:
    """Makers of one tensor each, all of which a parameter may be."""
    return {
        "plain": torch.randn,
        "empty": lambda _: torch.randn(0, 3),
        "scalar": lambda _: torch.randn(()),
        "odd": lambda n: torch.randn(n, 3, 1),
        "unaligned": lambda n: torch.randn(n + 1)[1:],
        "transposed": lambda n: torch.randn(n, 4).t(),
        "channels-last": lambda n: torch.randn(2, 3, n, 2).to(memory_format=torch.channels_last),
        "gaps": lambda n: torch.randn(n, 6)[:, ::2],
        "expanded-size-one": lambda n: torch.randn(1, n)[:, :n],
    }


HOW: dict[str, Any] = {  # what a step may be asked for, besides a layout
    "layout": st.sampled_from(sorted(layouts())),
    "other_strides": st.booleans(),
    "weight_decay": st.sampled_from([0.0, 0.01]),
    "maximize": st.booleans(),
    "momentum": st.sampled_from([0.0, 0.4, 0.9]),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    "seed": st.integers(0, 99),
}
