"""What the integration tests train: a tiny network, and comparisons of parameters bit for bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BATCH, EXAMPLES = 4, 64


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def examples(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    inputs = torch.randn(EXAMPLES, 6, generator=torch.Generator().manual_seed(1))
    return [(x.to(dtype), x[:2].sin().to(dtype)) for x in inputs]


def batch(k: int, dtype: torch.dtype = torch.float32, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return the k-th batch, as a loader without shuffling has it."""
    chosen = [examples(dtype)[i % EXAMPLES] for i in range(size * k, size * (k + 1))]
    return torch.stack([x for x, _ in chosen]), torch.stack([y for _, y in chosen])


def plain_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    before_step: Callable[[], Any] = lambda: None,
    size: int = BATCH,
) -> None:
    """Train without any framework; what a framework must equal."""
    dtype = next(model.parameters()).dtype
    for k in steps:
        inputs, targets = batch(k, dtype, size)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        before_step()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    assert [p.dtype for p in left] == [p.dtype for p in right]
    assert all(map(torch.equal, left, right))


def assert_close(left: list[Tensor], right: list[Tensor], atol: float = 1e-6) -> None:
    for p, q in zip(left, right, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=atol)


def assert_moved(left: list[Tensor], right: list[Tensor]) -> None:
    """So that a comparison of networks that never trained cannot pass."""
    assert all((p.float() - q.float()).abs().max() > 1e-3 for p, q in zip(left, right, strict=True))
