"""Two processes on gloo: DDP and FSDP2 give the result of one process, and sharded runs resume bitwise."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.two_processes import alone, ddp, fsdp2, two_processes
from support.versions import newer_torch

from dualavg._dadapt import DAdaptMDA

KERNELS: list[dict[str, Any]] = [{}, {"foreach": True}, {"fused": True}]
FINDS_LR = {"cls": DAdaptMDA, "d0": 0.01}


def results(folder: Path, name: str) -> list[list[torch.Tensor]]:
    """The parameters of both processes."""
    return [torch.load(folder / f"{name}-rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("settings", [{}, FINDS_LR], ids=str)
def test_ddp_gives_the_result_of_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    two_processes(partial(ddp, **settings), tmp_path)
    for params in results(tmp_path, "ddp"):
        for p, q in zip(params, alone(**settings), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-10)


@newer_torch  # FSDP2 of 2.6 does not run on CPUs
@pytest.mark.parametrize(
    ("dtype", "atol"),
    [
        (torch.float64, 1e-10),
        (torch.float32, 1e-5),
        (torch.bfloat16, 0.1),  # gradients are rounded before they are summed
        (torch.float16, 0.1),
    ],
    ids=str,
)
def test_fsdp2_gives_the_result_of_one_process_with_every_kernel(
    dtype: torch.dtype, atol: float, tmp_path: Path
) -> None:
    """A shard is a tensor subclass, and no kernel may take it for a plain tensor."""
    kernels = [
        *KERNELS,
        *([{"fused": True, "anchor_dtype": torch.bfloat16}] if dtype == torch.float32 else []),
        *([{**FINDS_LR, **kernel} for kernel in KERNELS] if dtype.itemsize >= 4 else []),
    ]
    two_processes(partial(fsdp2, dtype=dtype, kernels=kernels), tmp_path)
    for i, kernel in enumerate(kernels):
        for params in results(tmp_path, f"fsdp2-{i}"):
            for p, q in zip(params, alone(dtype, **kernel), strict=True):
                torch.testing.assert_close(p, q, rtol=0, atol=atol)
