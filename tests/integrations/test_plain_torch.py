"""Plain torch: averaged weights, loss scaling, steps inside the backward pass, distributed checkpoints."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.tiny_trainers import assert_close, assert_moved, assert_same, batch, network, plain_loop, weights
from support.two_processes import alone, ddp, fsdp2, two_processes
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dualavg import MDA
from dualavg.schedules import WarmupCosine


def test_ema_follows_the_weights_and_leaves_them_alone() -> None:
    model, control = network(), network()
    optimizer = MDA(model.parameters())
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    seen = []
    for k in range(10):
        plain_loop(model, optimizer, range(k, k + 1))
        ema.update_parameters(model)
        seen.append(weights(model))
    plain_loop(control, MDA(control.parameters()), range(10))
    assert_same(weights(model), weights(control))
    expected = seen[0]
    for now in seen[1:]:
        expected = [0.8 * mean + 0.2 * p for mean, p in zip(expected, now, strict=True)]
    assert_close(weights(ema.module), expected)
    assert_moved(weights(ema.module), weights(model))


def test_evaluating_the_ema_in_place_of_the_weights_does_not_move_the_anchor() -> None:
    model, control = network(), network()
    optimizer = MDA(model.parameters())
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    plain_loop(model, optimizer, range(5))
    ema.update_parameters(model)
    here = copy.deepcopy(model.state_dict())
    model.load_state_dict(ema.module.state_dict())
    model.load_state_dict(here)
    plain_loop(model, optimizer, range(5, 10))
    plain_loop(control, MDA(control.parameters()), range(10))
    assert_same(weights(model), weights(control))


def test_grad_scaler_skips_an_overflow_and_else_changes_nothing() -> None:
    model, control = network(), network()
    optimizer, scaler = MDA(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k in range(10):
        inputs, targets = batch(k)
        for overflows in (True, False) if k == 4 else (False,):
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), targets)
            scaler.scale(loss * torch.inf if overflows else loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    clip = partial(torch.nn.utils.clip_grad_norm_, list(control.parameters()), 0.1)
    plain_loop(control, MDA(control.parameters()), range(10), before_step=clip)
    assert scaler.get_scale() == 512.0  # one overflow
    assert_same(weights(model), weights(control))
    assert_moved(weights(model), weights(network()))


def test_an_optimizer_per_parameter_steps_inside_the_backward_pass() -> None:
    """Gradients are freed one by one: the largest saving of memory that needs no other optimizer."""
    model, control = network(), network()
    optimizers = {p: MDA([p]) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for k in range(10):
        inputs, targets = batch(k)
        mse_loss(model(inputs), targets).backward()
        assert all(p.grad is None for p in model.parameters())
    plain_loop(control, MDA(control.parameters()), range(10))
    assert_same(weights(model), weights(control))
    assert_moved(weights(model), weights(network()))


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled, )?unavailable or uninitialized")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch 2.6
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_run_with_a_schedule_resumes_bitwise_from_a_distributed_checkpoint(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    def make() -> tuple[torch.nn.Module, MDA, WarmupCosine]:
        model = network(dtype)
        optimizer = MDA(model.parameters(), anchor_dtype=torch.bfloat16)
        return model, optimizer, WarmupCosine(optimizer, 3, 20)

    model, optimizer, scheduler = make()
    plain_loop(model, optimizer, range(8), scheduler=scheduler)
    states = get_state_dict(model, optimizer)
    dcp.save(
        {"model": states[0], "optimizer": states[1], "scheduler": scheduler.state_dict()},
        checkpoint_id=tmp_path,
    )
    plain_loop(model, optimizer, range(8, 20), scheduler=scheduler)

    resumed, optimizer, scheduler = make()
    states = get_state_dict(resumed, optimizer)
    target = {"model": states[0], "optimizer": states[1], "scheduler": scheduler.state_dict()}
    dcp.load(target, checkpoint_id=tmp_path)
    set_state_dict(resumed, optimizer, model_state_dict=target["model"], optim_state_dict=target["optimizer"])
    scheduler.load_state_dict(target["scheduler"])
    plain_loop(resumed, optimizer, range(8, 20), scheduler=scheduler)
    assert_same(weights(model), weights(resumed))
    assert_moved(weights(model), weights(network(dtype)))


@pytest.mark.slow
def test_ddp_and_fsdp2_with_a_sharded_checkpoint_equal_one_process(tmp_path: Path) -> None:
    """tests/optim/test_distributed.py has this for every kernel and dtype."""
    two_processes(ddp, tmp_path)
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    settings = {"anchor_dtype": torch.bfloat16}
    two_processes(partial(fsdp2, dtype=torch.float32, kernels=[settings]), tmp_path)
    for rank in range(2):
        saved = [torch.load(tmp_path / f"{name}-rank{rank}.pt") for name in ("ddp", "fsdp2-0")]
        assert_close(saved[0], alone(), 1e-10)
        assert_close(saved[1], alone(torch.float32, **settings), 1e-5)
