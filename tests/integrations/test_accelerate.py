"""Accelerate: accumulation, clipping, save_state and load_state."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_trainers import (
    BATCH,
    assert_close,
    assert_moved,
    assert_same,
    examples,
    network,
    plain_loop,
    weights,
)
from torch import nn

from dualavg import MDA
from dualavg.schedules import WarmupLinearDecay

STEPS = 12


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    """Its settings are one state per process."""
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def with_schedule(model: nn.Module) -> tuple[MDA, WarmupLinearDecay]:
    optimizer = MDA(model.parameters())
    return optimizer, WarmupLinearDecay(optimizer, 3, STEPS)


def prepare(accumulate: int = 1, dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Any, ...]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **settings)
    model = network(dtype)
    optimizer, scheduler = with_schedule(model)
    loader = torch.utils.data.DataLoader(examples(dtype), BATCH)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler, loader)


def train(prepared: tuple[Any, ...], batches: int, *, first: int = 0, clip: float | None = None) -> None:
    accelerator, model, optimizer, scheduler, loader = prepared
    seen = list(loader) * 2
    for inputs, targets in seen[first : first + batches]:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def control(size: int = BATCH, dtype: torch.dtype = torch.float32, steps: int = STEPS) -> list[torch.Tensor]:
    model = network(dtype)
    optimizer, scheduler = with_schedule(model)
    plain_loop(model, optimizer, range(steps), scheduler=scheduler, size=size)
    assert_moved(weights(model), weights(network(dtype)))
    return weights(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_trains_as_a_plain_loop_does(dtype: torch.dtype) -> None:
    prepared = prepare(dtype=dtype)
    train(prepared, STEPS)
    assert_same(weights(prepared[1]), control(dtype=dtype))


def test_accumulation_takes_one_step_for_two_batches() -> None:
    prepared = prepare(accumulate=2)
    train(prepared, 2 * STEPS)
    _, model, optimizer, *_ = prepared
    assert optimizer.optimizer.state[next(model.parameters())]["step"] == STEPS
    assert_close(weights(model), control(2 * BATCH), 1e-5)


def test_save_state_and_load_state_resume_bitwise(tmp_path: Path) -> None:
    prepared = prepare(accumulate=2)
    train(prepared, 10)
    prepared[0].save_state(str(tmp_path))
    train(prepared, 14, first=10)
    expected = weights(prepared[1])

    resumed = prepare(accumulate=2)
    resumed[0].load_state(str(tmp_path))
    train(resumed, 14, first=10)
    assert_same(weights(resumed[1]), expected)
    assert_moved(expected, weights(network()))
    assert resumed[2].optimizer.state[next(resumed[1].parameters())]["step"] == STEPS


def test_clipping_is_that_of_torch() -> None:
    prepared, model = prepare(), network()
    train(prepared, STEPS, clip=0.1)
    optimizer, scheduler = with_schedule(model)
    params = list(model.parameters())
    plain_loop(
        model,
        optimizer,
        range(STEPS),
        scheduler=scheduler,
        before_step=lambda: nn.utils.clip_grad_norm_(params, 0.1),
    )
    assert_same(weights(prepared[1]), weights(model))
    assert not torch.equal(weights(model)[0], control()[0])
