"""Two processes on gloo: DDP and FSDP2 give the numbers of one process, and sharded runs resume bitwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from two_processes import alone, ddp, fsdp2, two_processes


@pytest.mark.parametrize("task", [ddp, fsdp2], ids=lambda f: f.__name__)
def test_two_processes_give_the_numbers_of_one(task: Callable[[slice, Path], Any], tmp_path: Path) -> None:
    two_processes(task, tmp_path)
    for rank in range(2):
        params = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        for p, q in zip(params, alone(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-10)
