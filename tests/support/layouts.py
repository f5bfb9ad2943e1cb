"""Tensors of every shape and stride that a parameter may have."""

from typing import Any

import torch
from hypothesis import strategies as st


def layouts() -> dict[str, Any]:
    """Functions that create a tensor of some layout, by name."""
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


SETTINGS: dict[str, Any] = {  # of random steps
    "layout": st.sampled_from(sorted(layouts())),
    "other_strides": st.booleans(),
    "weight_decay": st.sampled_from([0.0, 0.01]),
    "maximize": st.booleans(),
    "momentum": st.sampled_from([0.0, 0.4, 0.9]),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    "seed": st.integers(0, 99),
}
