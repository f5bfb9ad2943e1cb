"""The two rivals that pull to the start equal what they stand for, in float64."""

import pytest
import torch

from dualavg_bench.recipe import Point, registry
from dualavg_bench.recipe.towards_start import AdamWTowardsStart, SGDTowardsStart

STRENGTH, LR, STEPS = 0.3, 0.02, 30


def start() -> torch.Tensor:
    return torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def f(x: torch.Tensor) -> torch.Tensor:
    """A smooth function that is not convex."""
    return (x**2).sum() / 2 + (3 * x).sin().sum() + x[0] * x[1]


def path(optimizer: torch.optim.Optimizer, x: torch.Tensor, objective) -> list[torch.Tensor]:
    points = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        objective(x).backward()
        optimizer.step()
        points.append(x.detach().clone())
    return points


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    torch.testing.assert_close(torch.stack(a), torch.stack(b), rtol=1e-12, atol=1e-12)


def test_l2_sp_is_a_penalty_in_the_loss():
    ours, theirs = (start().requires_grad_() for _ in range(2))
    sgd = torch.optim.SGD([theirs], LR, momentum=0.9)
    expected = path(sgd, theirs, lambda x: f(x) + STRENGTH / 2 * (x - start()).square().sum())
    assert_same(path(SGDTowardsStart([ours], LR, momentum=0.9, weight_decay=STRENGTH), ours, f), expected)


def test_decay_towards_the_start_is_adamw_around_it():
    """AdamW on y = x - x_0 decays to y = 0."""
    ours, y = start().requires_grad_(), torch.zeros(5, dtype=torch.float64, requires_grad=True)
    adamw = torch.optim.AdamW([y], LR, weight_decay=STRENGTH)
    expected = [point + start() for point in path(adamw, y, lambda y: f(start() + y))]
    assert_same(path(AdamWTowardsStart([ours], LR, weight_decay=STRENGTH), ours, f), expected)


def test_decay_towards_the_start_is_a_step_of_sgd_on_the_penalty_and_one_of_adam():
    ours, x = start().requires_grad_(), start().requires_grad_()
    adam, expected = torch.optim.Adam([x], LR), []
    for _ in range(STEPS):
        adam.zero_grad()
        f(x).backward()
        penalty = STRENGTH / 2 * (x - start()).square().sum()
        (slope,) = torch.autograd.grad(penalty, x)
        with torch.no_grad():
            x -= LR * slope
        adam.step()
        expected.append(x.detach().clone())
    assert_same(path(AdamWTowardsStart([ours], LR, weight_decay=STRENGTH), ours, f), expected)


@pytest.mark.parametrize("name", ["sgd+l2sp", "adamw+start"])
def test_without_a_strength_they_are_torch_s(name):
    ours, theirs = (start().requires_grad_() for _ in range(2))
    plain = "sgd" if name.startswith("sgd") else "adamw"
    optimizers = (registry.make(of, [x], Point(LR), {}) for of, x in ((name, ours), (plain, theirs)))
    assert_same(*(path(optimizer, x, f) for optimizer, x in zip(optimizers, (ours, theirs), strict=True)))


@pytest.mark.parametrize("name", ["sgd+l2sp", "adamw+start"])
def test_a_checkpoint_keeps_the_start(name):
    straight, resumed = (start().requires_grad_() for _ in range(2))
    first = registry.make(name, [straight], Point(LR, STRENGTH), {})
    expected = path(first, straight, f) + path(first, straight, f)
    saved = registry.make(name, [resumed], Point(LR, STRENGTH), {})
    points = path(saved, resumed, f)
    loaded = registry.make(name, [resumed], Point(LR, STRENGTH), {})
    loaded.load_state_dict(saved.state_dict())
    assert_same(points + path(loaded, resumed, f), expected)


@pytest.mark.parametrize("name", ["sgd+l2sp", "adamw+start"])
def test_grad_is_untouched_and_parameters_without_one_stay(name):
    x, idle = start().requires_grad_(), start().requires_grad_()
    optimizer = registry.make(name, [x, idle], Point(LR, STRENGTH), {})
    for _ in range(3):
        f(x).backward()
        before = x.grad.clone()
        optimizer.step()
        assert torch.equal(x.grad, before)
    assert torch.equal(idle, start())
    assert idle not in optimizer.state
