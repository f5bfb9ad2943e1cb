"""What the page "Fine-tuning" says about the anchor: each statement is a test."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch

from dualavg import MDA

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_transformers.py"


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()


def take_steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5, seed: int = 7
) -> None:
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        inputs, targets = (torch.randn(16, n, generator=rng).double() for n in (4, 2))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def values(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def anchors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [optimizer.state[p]["x0"] for p in model.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_weights_loaded_before_the_first_step_are_the_anchor() -> None:
    model, pretrained = network(0), network(1)
    optimizer = MDA(model.parameters(), lr=0.1)
    model.load_state_dict(pretrained.state_dict())
    take_steps(model, optimizer)
    assert same(anchors(model, optimizer), values(pretrained))


def test_without_gradients_parameters_return_to_the_pretrained_network() -> None:
    model = network()
    start = values(model)
    optimizer = MDA(model.parameters(), lr=0.1)
    take_steps(model, optimizer, 20)

    def distance() -> float:
        return sum((p.detach() - x).norm().item() for p, x in zip(model.parameters(), start, strict=True))

    distances = [distance()]
    for _ in range(2):
        for _ in range(200):
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
        distances.append(distance())
    assert distances[2] < distances[1] < 0.5 * distances[0]


def test_continued_training_keeps_the_first_anchor() -> None:
    model = network()
    start = values(model)
    optimizer = MDA(model.parameters(), lr=0.1)
    take_steps(model, optimizer)
    again = copy.deepcopy(model)
    resumed = MDA(again.parameters(), lr=0.1)
    resumed.load_state_dict(optimizer.state_dict())
    take_steps(again, resumed)
    assert same(anchors(again, resumed), start)


def test_weights_without_the_optimizer_s_state_start_a_new_anchor() -> None:
    model = network()
    take_steps(model, MDA(model.parameters(), lr=0.1))
    saved = values(model)
    fresh = MDA(model.parameters(), lr=0.1)
    take_steps(model, fresh)
    assert same(anchors(model, fresh), saved)


def test_reset_anchor_makes_a_stage_start_where_the_last_one_ended() -> None:
    staged, fresh = network(), network()
    optimizer = MDA(staged.parameters(), lr=0.1)
    take_steps(staged, optimizer)
    take_steps(fresh, MDA(fresh.parameters(), lr=0.1))
    end = values(staged)
    optimizer.reset_anchor()
    take_steps(staged, optimizer, seed=8)
    assert same(anchors(staged, optimizer), end)
    take_steps(fresh, MDA(fresh.parameters(), lr=0.1), seed=8)  # a new optimizer does the same
    assert same(values(staged), values(fresh))


def test_a_frozen_layer_stays_bit_for_bit_and_has_no_state() -> None:
    model = network()
    optimizer = MDA(model.parameters(), lr=0.1, weight_decay=0.1)
    model[0].requires_grad_(False)
    before = values(model[0])
    take_steps(model, optimizer)
    assert same(values(model[0]), before)
    assert all(p not in optimizer.state for p in model[0].parameters())


def test_a_layer_that_is_unfrozen_later_has_its_own_anchor_and_count() -> None:
    model = network()
    optimizer = MDA(model.parameters(), lr=0.1)
    model[0].requires_grad_(False)
    take_steps(model, optimizer, 5)
    before = values(model[0])
    model[0].requires_grad_(True)
    take_steps(model, optimizer, 3)
    assert same(anchors(model[0], optimizer), before)
    assert [optimizer.state[p]["step"].item() for p in model.parameters()] == [3, 3, 8, 8]


def test_a_new_head_is_pulled_to_its_first_values_and_one_of_zeros_to_zero() -> None:
    for zeros in (False, True):
        model = network()
        head = model[2] = torch.nn.Linear(8, 2).double()
        if zeros:
            torch.nn.init.zeros_(head.weight)
        first = head.weight.detach().clone()
        optimizer = MDA([{"params": model[0].parameters()}, {"params": head.parameters(), "lr": 1.0}], lr=0.1)
        take_steps(model, optimizer)
        assert torch.equal(optimizer.state[head.weight]["x0"], first)
        assert bool(first.any()) != zeros


def test_an_anchor_elsewhere_moves_the_parameters_there() -> None:
    """So `x0` cannot be another network than the one that training starts from."""
    model, elsewhere = network(0), network(1)
    optimizer = MDA(model.parameters(), lr=1e-2)
    take_steps(model, optimizer, 1)
    optimizer.reset_anchor()
    for p, x in zip(model.parameters(), elsewhere.parameters(), strict=True):
        optimizer.state[p]["x0"].copy_(x.detach())
    take_steps(model, optimizer, 50)
    for p, x, y in zip(model.parameters(), elsewhere.parameters(), network(0).parameters(), strict=True):
        assert (p - x).norm() < 0.3 * (p - y).norm()


def test_a_larger_lr_is_a_weaker_pull() -> None:
    """alpha_k = 1 / (2 eta_k (k + 1)), to first order: the strength of L2-SP that MDA stands for."""
    from dualavg.theory import alpha

    assert alpha(100, 1.0) == pytest.approx(1 / 202, rel=0.01)
    assert alpha(100, 0.1) == pytest.approx(10 * alpha(100, 1.0))


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("finetune_transformers", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(pretraining_steps=2, steps=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("before")
    assert len(lines) == 7
    assert all("new text" in line and "old text" in line for line in lines)
