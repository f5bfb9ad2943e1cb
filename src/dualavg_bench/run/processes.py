"""Processes that share one run (torchrun): their ranks, and how they agree."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dualavg_bench.store.files import StoreError

T = TypeVar("T")


def rank() -> int:
    """Return the rank of this process; 0 if it is the only one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world() -> int:
    """Return the number of processes that share the run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def from_rank_0(compute: Callable[[], T]) -> T:
    """Call a function on rank 0 and return its value on all ranks; if it raises, all ranks raise."""
    if world() == 1:
        return compute()
    message: list[Any] = [None, ""]  # the value, the error
    try:
        if rank() == 0:
            message[0] = compute()
    except BaseException as error:
        message[1] = str(error) or type(error).__name__
        raise
    finally:
        dist.broadcast_object_list(message)
    if message[1]:
        raise StoreError(message[1])
    value: T = message[0]
    return value


def any_of(*flags: bool) -> list[bool]:
    """Return for each flag whether it is set on any rank."""
    values = torch.tensor(flags, dtype=torch.int32)
    if world() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return [bool(value) for value in values.tolist()]
