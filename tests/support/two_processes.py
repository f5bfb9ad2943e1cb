"""What the two processes of test_distributed.py run; in a module of its own, so that they can import it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from dualavg import MDA

STEPS = 12


def network(dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(dtype)


def batch(k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(k)
    inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return inputs, inputs[:, :2].sin()


def fit(model: torch.nn.Module, optimizer: Optimizer, steps: range, part: slice) -> None:
    for k in steps:
        inputs, targets = (t[part].to(next(model.parameters()).dtype) for t in batch(k))
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        for group in optimizer.param_groups:
            group["lr"] = 1.0 / (k + 1)
        optimizer.step()


def alone(dtype: torch.dtype = torch.float64, cls: type[Optimizer] = MDA, **kernel: Any) -> list[Tensor]:
    model = network(dtype)
    fit(model, cls(model.parameters(), weight_decay=1e-3, **kernel), range(STEPS), slice(None))
    return [p.detach() for p in model.parameters()]


def _worker(rank: int, task: Callable[[slice, Path], Any], folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        task(slice(rank * 4, rank * 4 + 4), folder)
    finally:
        dist.destroy_process_group()
    # Device meshes keep gloo's threads alive. One that still holds a tensor at the interpreter's shutdown
    # sometimes aborts the process.
    os._exit(0)


def two_processes(task: Callable[[slice, Path], Any], folder: Path) -> None:
    torch.multiprocessing.spawn(_worker, (task, folder), nprocs=2)


def ddp(part: slice, folder: Path, cls: type[Optimizer] = MDA, **settings: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    model = network()
    optimizer = cls(model.parameters(), weight_decay=1e-3, **settings)
    fit(DistributedDataParallel(model), optimizer, range(STEPS), part)
    torch.save([p.detach() for p in model.parameters()], folder / f"ddp-rank{dist.get_rank()}.pt")


def _sharded(
    dtype: torch.dtype, cls: type[Optimizer] = MDA, **kernel: Any
) -> tuple[torch.nn.Module, Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network(dtype)
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model, cls(model.parameters(), weight_decay=1e-3, **kernel)


def fsdp2(part: slice, folder: Path, dtype: torch.dtype, kernels: list[dict[str, Any]]) -> None:
    """Half the run, a sharded checkpoint, and the other half in new objects: once for each kernel."""
    for i, kernel in enumerate(kernels):
        model, optimizer = _sharded(dtype, **kernel)
        fit(model, optimizer, range(STEPS // 2), part)
        state = optimizer.state[next(iter(model.parameters()))]
        assert type(state["s"]) is type(state["x0"]) is type(next(iter(model.parameters())).data)
        weights, saved = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": saved}, checkpoint_id=folder / f"checkpoint-{i}")
        fit(model, optimizer, range(STEPS // 2, STEPS), part)
        expected = [p.full_tensor() for p in model.parameters()]

        model, optimizer = _sharded(dtype, **kernel)
        weights, saved = get_state_dict(model, optimizer)
        target = {"model": weights, "optimizer": saved}
        dcp.load(target, checkpoint_id=folder / f"checkpoint-{i}")
        set_state_dict(
            model, optimizer, model_state_dict=target["model"], optim_state_dict=target["optimizer"]
        )
        fit(model, optimizer, range(STEPS // 2, STEPS), part)
        resumed = [p.full_tensor() for p in model.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(expected, resumed, strict=True))
        torch.save([p.detach() for p in resumed], folder / f"fsdp2-{i}-rank{dist.get_rank()}.pt")
