"""Several processes that share one run: who is who, and what they agree on."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dualavg_bench.store.files import StoreError

T = TypeVar("T")


def rank() -> int:
    """Return this process's number; 0 if it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world() -> int:
    """Return how many processes share the run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def from_rank_0(find: Callable[[], T]) -> T:
    """Return to every process what rank 0 finds; what it raises stops them all."""
    if world() == 1:
        return find()
    found: list[Any] = [None, ""]
    try:
        if rank() == 0:
            found[0] = find()
    except BaseException as error:
        found[1] = str(error) or type(error).__name__
        raise
    finally:
        dist.broadcast_object_list(found)
    if found[1]:
        raise StoreError(found[1])
    value: T = found[0]
    return value


def any_of(*wishes: bool) -> list[bool]:
    """What one process wishes, all of them do."""
    said = torch.tensor(wishes, dtype=torch.int32)
    if world() > 1:
        dist.all_reduce(said, dist.ReduceOp.MAX)
    return [bool(wish) for wish in said.tolist()]
