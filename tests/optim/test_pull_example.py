"""The optimizers of examples/pull.py are what its docstring says."""

import sys
from pathlib import Path

import pytest
import torch

from dualavg import MDA
from dualavg_bench.recipe.loading import load

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 60


@pytest.fixture
def pull(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import pull

    return pull


def lr_at(step: int) -> float:
    """Warm-up, flat, decay to zero."""
    return min(1.0, (step + 1) / 5, (STEPS - 1 - step) / 20) * 0.3


def trajectory(cls: type[torch.optim.Optimizer], *, lr=lr_at, **settings) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.randn(8, dtype=torch.float64))
    target = torch.randn(8, dtype=torch.float64)
    optimizer = cls([x], **settings)
    visited = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = lr(step)
        optimizer.zero_grad()
        (x - target).square().sum().backward()
        optimizer.step()
        visited.append(x.detach().clone())
    return torch.stack(visited)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_full_pull_is_mda(pull, weight_decay: float) -> None:
    ours = trajectory(pull.FullPull, lr=lr_at, weight_decay=weight_decay)
    assert torch.allclose(ours, trajectory(MDA, lr=lr_at, weight_decay=weight_decay), rtol=0, atol=1e-12)


def test_no_pull_is_sgd_with_momentum(pull) -> None:
    ours = trajectory(pull.NoPull, lr=lambda _: 0.3)
    sgd = trajectory(torch.optim.SGD, lr=lambda _: 0.03, momentum=0.9)
    assert torch.allclose(ours, sgd, rtol=0, atol=1e-12)


def test_a_fading_pull_is_full_while_lr_is_flat_and_none_where_it_is_zero(pull) -> None:
    flat = [trajectory(cls, lr=lambda _: 0.3) for cls in (pull.FadingPull, pull.FullPull)]
    assert torch.equal(*flat)

    def falls_to_zero(step: int) -> float:
        return 0.3 if step < 20 else 0.0

    fading, none, full = (
        trajectory(cls, lr=falls_to_zero) for cls in (pull.FadingPull, pull.NoPull, pull.FullPull)
    )
    assert torch.equal(fading[30], fading[-1])  # lr 0: nothing moves
    assert torch.equal(none[30], none[-1])
    assert not torch.equal(full[30], full[-1])  # MDA's pull goes on


@pytest.mark.parametrize("task", ["cifar10", "wikitext103"])
def test_the_recipes_pair_up_with_the_study_of_mda(task: str) -> None:
    theirs, _ = load(task, "mini")
    ours, _ = load(str(EXAMPLES / f"pull_{task}.py"), "mini")
    assert ours.settings() == theirs.settings()
    assert ours.seeds == theirs.seeds
    assert [grid.points() for grid in ours.grids.values()] == 2 * [theirs.grids["mda"].points()]
    assert set(ours.grids) == {"pull.FadingPull", "pull.NoPull"}
    sys.modules.pop("pull", None)
