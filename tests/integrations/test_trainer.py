"""Hugging Face Trainer: three ways to give it MDA, resume, bf16."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_trainers import (
    BATCH,
    assert_moved,
    assert_same,
    batch,
    examples,
    network,
    plain_loop,
    weights,
)
from torch import Tensor, nn

from dualavg import MDA
from dualavg.schedules import WarmupLinearDecay

STEPS = 12


class Model(nn.Module):
    """The tiny network, as Trainer calls it: it returns the loss."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.network = network(dtype)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.network(inputs)
        return {"loss": nn.functional.mse_loss(outputs.to(labels.dtype), labels), "logits": outputs}


def make_trainer(model: nn.Module, folder: Path, *, arguments: dict[str, Any], **given: Any) -> Any:
    """A Trainer that takes the examples in order, so that a plain loop can be compared with it."""
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    dtype = next(model.parameters()).dtype
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "max_grad_norm": 0.0,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        **arguments,
    }
    data = [{"inputs": x, "labels": y} for x, y in examples(dtype)]
    return InOrder(model, TrainingArguments(**settings), train_dataset=data, **given)


def with_schedule(model: nn.Module, **settings: Any) -> tuple[MDA, WarmupLinearDecay]:
    optimizer = MDA(model.parameters(), **settings)
    return optimizer, WarmupLinearDecay(optimizer, 3, STEPS)


def expected(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    model = network(dtype)
    optimizer, scheduler = with_schedule(model)
    plain_loop(model, optimizer, range(STEPS), scheduler=scheduler)
    assert_moved(weights(model), weights(network(dtype)))
    return weights(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_optimizers_trains_as_a_plain_loop_does(dtype: torch.dtype, tmp_path: Path) -> None:
    model = Model(dtype)
    make_trainer(model, tmp_path, arguments={}, optimizers=with_schedule(model)).train()
    assert_same(weights(model), expected(dtype))


def test_optimizer_cls_and_kwargs_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    """The lr is that of the kwargs; Trainer's learning_rate is not used."""
    model = Model()
    given = (MDA, {"lr": 0.5, "momentum": 0.8})
    make_trainer(
        model, tmp_path, arguments={"lr_scheduler_type": "constant"}, optimizer_cls_and_kwargs=given
    ).train()
    control = network()
    plain_loop(control, MDA(control.parameters(), lr=0.5, momentum=0.8), range(STEPS))
    assert_same(weights(model), weights(control))
    assert_moved(weights(model), weights(network()))


@pytest.mark.parametrize("way", ["optimizers", "optimizer_cls_and_kwargs"])
def test_resume_is_bitwise(way: str, tmp_path: Path) -> None:
    arguments = {"save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "cosine", "warmup_steps": 2}

    def make() -> tuple[nn.Module, Any]:
        model = Model()
        given: Any = with_schedule(model) if way == "optimizers" else (MDA, {"lr": 1.0})
        return model, make_trainer(model, tmp_path, arguments=arguments, **{way: given})

    uninterrupted, trainer = make()
    trainer.train()
    resumed, trainer = make()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert_same(weights(uninterrupted), weights(resumed))
    assert_moved(weights(resumed), weights(Model()))
    assert trainer.optimizer.optimizer.state[next(resumed.parameters())]["step"] == STEPS


def test_bf16_keeps_float32_weights(tmp_path: Path) -> None:
    """`bf16=True` is autocast."""
    model, control = Model(), network()
    make_trainer(model, tmp_path, arguments={"bf16": True}, optimizers=with_schedule(model)).train()
    optimizer, scheduler = with_schedule(control)
    for k in range(STEPS):
        inputs, targets = batch(k)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = control(inputs)
        nn.functional.mse_loss(outputs.float(), targets).backward()
        optimizer.step()
        scheduler.step()
    assert_same(weights(model), weights(control))
    assert not torch.equal(weights(control)[0], expected()[0])


def test_the_learning_rate_of_trainer_warns(tmp_path: Path) -> None:
    """5e-5, the default, leaves an MDA network where it was."""
    trainer = make_trainer(Model(), tmp_path, arguments={})
    with pytest.warns(UserWarning, match=r"lr=5e-05 hardly moves a network"):
        MDA(trainer.model.parameters(), lr=trainer.args.learning_rate)


def test_the_warm_up_of_trainer_keeps_a_float32_anchor_and_ours_two_bytes(tmp_path: Path) -> None:
    """Trainer's schedules begin with a step at lr 0, which must not round the parameters."""
    dtypes = []
    for own_schedule in (True, False):
        model = Model()
        optimizer, scheduler = with_schedule(model, anchor_dtype=torch.bfloat16)
        if not own_schedule:
            optimizer = MDA(model.parameters(), anchor_dtype=torch.bfloat16)
        given = (optimizer, scheduler if own_schedule else None)
        make_trainer(model, tmp_path, arguments={"warmup_steps": 2}, optimizers=given).train()
        dtypes.append(optimizer.state[next(model.parameters())]["x0"].dtype)
    assert dtypes == [torch.bfloat16, torch.float32]


def test_gradient_accumulation_takes_one_step_for_two_batches(tmp_path: Path) -> None:
    model = Model(torch.float64)
    optimizer, scheduler = with_schedule(model)
    arguments = {"gradient_accumulation_steps": 2, "max_steps": 6}
    make_trainer(model, tmp_path, arguments=arguments, optimizers=(optimizer, scheduler)).train()
    control = network(torch.float64)
    own, scheduler = with_schedule(control)
    plain_loop(control, own, range(6), scheduler=scheduler, size=2 * BATCH)
    assert optimizer.state[next(model.parameters())]["step"] == 6
    for p, q in zip(weights(model), weights(control), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


def test_clipping_is_that_of_torch(tmp_path: Path) -> None:
    model, control = Model(), network()
    make_trainer(model, tmp_path, arguments={"max_grad_norm": 0.1}, optimizers=with_schedule(model)).train()
    optimizer, scheduler = with_schedule(control)
    clip = partial(nn.utils.clip_grad_norm_, list(control.parameters()), 0.1)
    plain_loop(control, optimizer, range(STEPS), scheduler=scheduler, before_step=clip)
    assert_same(weights(model), weights(control))
    assert not torch.equal(weights(control)[0], expected()[0])
