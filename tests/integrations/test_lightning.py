"""Lightning: resume, accumulation, clipping, bf16-true."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_trainers import (
    BATCH,
    EXAMPLES,
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

STEPS = 2 * EXAMPLES // BATCH  # two epochs
pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec"),  # at lightning's import
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


def with_schedule(model: nn.Module) -> tuple[MDA, WarmupLinearDecay]:
    optimizer = MDA(model.parameters())
    return optimizer, WarmupLinearDecay(optimizer, 3, STEPS)


def make_module(dtype: torch.dtype = torch.float32) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(dtype)

        def training_step(self, batch: Any, _: int) -> Any:
            return nn.functional.mse_loss(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer, scheduler = with_schedule(self)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Module()


def fit(module: Any, folder: Path, *, resume: Path | None = None, **settings: Any) -> Any:
    import lightning

    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 2,  # not max_steps: resumed with it, Lightning shows the first batch twice
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": folder,
            **settings,
        }
    )
    loader = torch.utils.data.DataLoader(examples(), BATCH)
    trainer.fit(module, loader, ckpt_path=resume)
    return trainer


def expected(dtype: torch.dtype = torch.float32, **loop: Any) -> list[torch.Tensor]:
    model = network(dtype)
    optimizer, scheduler = with_schedule(model)
    plain_loop(model, optimizer, range(STEPS), scheduler=scheduler, **loop)
    assert_moved(weights(model), weights(network(dtype)))
    return weights(model)


def test_it_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    module = make_module()
    fit(module, tmp_path)
    assert_same(weights(module), expected())


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_resume_is_bitwise(precision: str, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    checkpoints = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    settings: dict[str, Any] = {"precision": precision, "enable_checkpointing": True}
    settings["callbacks"] = [checkpoints]
    uninterrupted, resumed = make_module(), make_module()
    fit(uninterrupted, tmp_path, **settings)
    trainer = fit(resumed, tmp_path, resume=tmp_path / "epoch=0.ckpt", **settings)
    assert trainer.optimizers[0].state[next(resumed.parameters())]["step"] == STEPS
    assert_same(weights(resumed), weights(uninterrupted))
    assert_same(weights(resumed), expected(next(resumed.parameters()).dtype))


def test_accumulation_takes_one_step_for_two_batches(tmp_path: Path) -> None:
    module = make_module()
    fit(module, tmp_path, accumulate_grad_batches=2, max_epochs=4)
    assert_close(weights(module), expected(size=2 * BATCH), 1e-5)


def test_clipping_is_that_of_torch(tmp_path: Path) -> None:
    module = make_module()
    fit(module, tmp_path, gradient_clip_val=0.1)
    model = network()
    optimizer, scheduler = with_schedule(model)
    clip = partial(nn.utils.clip_grad_norm_, list(model.parameters()), 0.1)
    plain_loop(model, optimizer, range(STEPS), scheduler=scheduler, before_step=clip)
    assert_same(weights(module), weights(model))
    assert not torch.equal(weights(model)[0], expected()[0])


def test_bf16_true_keeps_the_sum_in_float32(tmp_path: Path) -> None:
    module = make_module()
    trainer = fit(module, tmp_path, precision="bf16-true")
    assert_same(weights(module), expected(torch.bfloat16))
    state = trainer.optimizers[0].state[next(module.parameters())]
    assert (state["x0"].dtype, state["s"].dtype) == (torch.bfloat16, torch.float32)
