"""Two processes on gloo: DDP and FSDP2 give the numbers of one process, and sharded runs resume bitwise."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.two_processes import alone, ddp, fsdp2, two_processes


def assert_numbers_of_one(
    task: Callable[[slice, Path], Any], folder: Path, alone: list[torch.Tensor], atol: float
) -> None:
    two_processes(task, folder)
    for rank in range(2):
        params = torch.load(folder / f"rank{rank}.pt", weights_only=True)
        for p, q in zip(params, alone, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=atol)


@pytest.mark.parametrize("task", [ddp, fsdp2], ids=lambda f: f.__name__)
def test_two_processes_give_the_numbers_of_one(task: Callable[[slice, Path], Any], tmp_path: Path) -> None:
    assert_numbers_of_one(task, tmp_path, alone(), 1e-10)


@pytest.mark.parametrize("how", [{}, {"fused": True, "anchor_dtype": torch.bfloat16}], ids=str)
def test_so_does_fsdp2_in_float32_on_every_path(how: dict[str, Any], tmp_path: Path) -> None:
    """A shard is no plain tensor: no kernel may take it for one."""
    assert_numbers_of_one(
        partial(fsdp2, dtype=torch.float32, **how), tmp_path, alone(torch.float32, **how), 1e-5
    )


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_so_does_fsdp2_in_half_precision(dtype: torch.dtype, how: dict[str, Any], tmp_path: Path) -> None:
    """Gradients are rounded before they are summed: close is all that they can be."""
    assert_numbers_of_one(partial(fsdp2, dtype=dtype, **how), tmp_path, alone(dtype, **how), 0.1)
